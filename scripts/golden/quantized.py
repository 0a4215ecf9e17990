"""Tiny models with quantised weights, packed by those who publish such checkpoints, and taken apart by them for the reference:
a checkpoint of what they say each matrix is."""
import importlib.util
import os
import pathlib
import subprocess
import sys
import tarfile
import tempfile
from dataclasses import dataclass

import torch
from compressed_tensors.compressors.base import BaseCompressor
from compressed_tensors.compressors.nvfp4.helpers import unpack_fp4_from_uint8
from compressed_tensors.quantization import QuantizationArgs, QuantizationScheme
from safetensors.torch import load_file, save_file

from golden import weights
from golden.variants import GLM4, LONGROPE, MINISTRAL3, PROMPT, QWEN2, edit, llama

GROUP = 32
SMALL = llama(vocab_size=96, num_key_value_heads=2)


@dataclass(frozen=True)
class Quantized:
    """`by`: makes the parts of a matrix and says what it is. `told`: its quantization_config."""
    name: str
    config: dict
    by: object
    told: dict
    seed: int = 40
    prompt: int = PROMPT
    # Beside what the parts are: name -> tensor.
    more: object = None
    dtype: str = "bfloat16"


def source_of(package, file):
    """A module of a package's source distribution, alone: the packages themselves want a GPU's libraries."""
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run([sys.executable, "-m", "pip", "download", "-q", "--no-deps", "--no-binary", ":all:",
                        "--no-build-isolation", package], cwd=folder, check=True, env=os.environ | dict(BUILD_CUDA_EXT="0"))
        archive = next(pathlib.Path(folder).glob("*.tar.gz"))
        with tarfile.open(archive) as tar:
            member = next(m for m in tar.getmembers() if m.name.endswith(file))
            tar.extract(member, folder, filter="data")
        spec = importlib.util.spec_from_file_location(pathlib.Path(file).stem, pathlib.Path(folder) / member.name)
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        return module


def grid(value, bits, symmetric, group=GROUP):
    """(scales, zero points) of a matrix's groups, [outputs, groups]: the nearest steps, zero points from 0."""
    groups = value.unflatten(1, (-1, group))
    most = 2 ** bits - 1
    if symmetric:
        scale = groups.abs().amax(-1) / (2 ** (bits - 1) - 1)
        return scale, torch.full_like(scale, 2 ** (bits - 1))
    low, high = groups.amin(-1).clamp(max=0), groups.amax(-1).clamp(min=0)
    scale = (high - low) / most
    return scale, (-low / scale).round().clamp(1, most)    # AutoGPTQ's files know no 0


class Gptq:
    """`bits`: of each matrix, by its name; `shuffled`: groups in an order of their own, as act-order makes them."""
    def __init__(self, bits, symmetric=True, shuffled=False):
        self.bits, self.symmetric, self.shuffled = bits, symmetric, shuffled

    def __call__(self, leaf, value, generator):
        linear = source_of("auto-gptq==0.7.1", "nn_modules/qlinear/qlinear_cuda.py") if Gptq.module is None else Gptq.module
        Gptq.module = linear
        bits = self.bits.get(leaf, 4)
        outputs, inputs = value.shape
        layer = linear.QuantLinear(bits, GROUP, inputs, outputs, bias=False)
        order = torch.arange(inputs) // GROUP
        if self.shuffled:
            order = order[torch.randperm(inputs, generator=generator)]
        ordered = value[:, order.argsort(stable=True)]
        scales, zeros = grid(ordered, bits, self.symmetric)
        held = torch.nn.Linear(inputs, outputs, bias=False)
        # What is beyond the codes would run into those beside it.
        least, most = (-zeros * scales)[:, order], ((2 ** bits - 1 - zeros) * scales)[:, order]
        held.weight.data = value.clamp(least, most).half()
        layer.pack(held, scales.half(), zeros.half(), order.int())
        parts = dict(qweight=layer.qweight, qzeros=layer.qzeros, scales=layer.scales, g_idx=order.int())
        layer.scales = layer.scales.float()
        return parts, layer(torch.eye(inputs)).T


Gptq.module = None


class Awq:
    module = None

    def __call__(self, leaf, value, generator):
        Awq.module = Awq.module or source_of("autoawq==0.2.9", "awq/utils/packing_utils.py")
        outputs, inputs = value.shape
        scales, zeros = grid(value, 4, symmetric=False)
        scales = scales.half()
        each = lambda x: x.repeat_interleave(GROUP, 1)
        codes = (value / each(scales.float()) + each(zeros)).round().clamp(0, 15)
        qweight, qzeros = self.pack(codes.T), self.pack(zeros.T)
        parts = dict(qweight=qweight, qzeros=qzeros, scales=scales.T.contiguous())
        return parts, Awq.module.dequantize_gemm(qweight, qzeros, scales.T.float(), 4, GROUP).T

    def pack(self, codes):
        eights = codes.long().unflatten(1, (-1, 8))[..., Awq.module.AWQ_ORDER]
        words = (eights << torch.arange(0, 32, 4)).sum(-1)
        return torch.where(words >= 2 ** 31, words - 2 ** 32, words).int()


class Compressed:
    """compressed-tensors' own compressors. `args`: of weights, by the matrix's name."""
    def __init__(self, format, args, scale_dtype=torch.bfloat16):
        self.format, self.args, self.scale_dtype = format, args, scale_dtype

    def __call__(self, leaf, value, generator):
        args = QuantizationArgs(**self.args(leaf))
        scheme = QuantizationScheme(targets=["Linear"], weights=args, format=self.format)
        compressor = BaseCompressor.get_value_from_registry(self.format)
        scale, zero = self.scales(args, value)
        scale = scale.to(self.scale_dtype)
        state = dict(weight=value, weight_scale=scale.float())
        if not args.symmetric:
            state["weight_zero_point"] = zero
        parts = compressor.compress(state, scheme)
        exact = compressor.decompress(dict(parts), scheme)["weight"]
        return parts | dict(weight_scale=scale), exact.float()

    def scales(self, args, value):
        strategy = getattr(args.strategy, "value", args.strategy)
        if args.type == "float":
            if strategy == "tensor":
                return (value.abs().amax() / 448).reshape(1), None
            return value.abs().amax(1, keepdim=True) / 448, None
        group = args.group_size if strategy == "group" else value.shape[1]
        scale, zero = grid(value, args.num_bits, args.symmetric, group)
        return scale, (zero - 2 ** (args.num_bits - 1)).to(torch.int8)


class Fp4:
    """compressed-tensors' floats of 4 bits with scales of floats or powers of two, of 8 with powers; one matrix as ModelOpt names its parts."""
    FORMATS = {"k_proj": ("mxfp4-pack-quantized", 4, 32), "v_proj": ("mxfp8-quantized", 8, 32)}

    def __call__(self, leaf, value, generator):
        format, bits, group = self.FORMATS.get(leaf, ("nvfp4-pack-quantized", 4, 16))
        args = QuantizationArgs(num_bits=bits, type="float", symmetric=True, strategy="group" if group == 32 else "tensor_group", group_size=group)
        scheme = QuantizationScheme(targets=["Linear"], weights=args, format=format)
        compressor = BaseCompressor.get_value_from_registry(format)
        most = value.unflatten(1, (-1, group)).abs().amax(-1) / (6 if bits == 4 else 448)
        state = dict(weight=value)
        if group == 32:
            state["weight_scale"] = 2 ** most.log2().ceil()
        else:
            state["weight_global_scale"] = (448 / most.amax()).reshape(1)
            state["weight_scale"] = (most * state["weight_global_scale"]).to(torch.float8_e4m3fn).float()
        parts = compressor.compress(state, scheme)
        scale = state["weight_scale"] / state.get("weight_global_scale", torch.ones(1))
        held = (unpack_fp4_from_uint8(parts["weight_packed"], *value.shape, torch.float32) if bits == 4 else parts["weight"].float())
        exact = held * scale.repeat_interleave(group, 1)
        assert (exact - value).abs().max() < 0.2 * value.abs().max()
        if leaf == "o_proj":
            parts = dict(weight=parts["weight_packed"], weight_scale=parts["weight_scale"], weight_scale_2=(1 / parts["weight_global_scale"]).reshape(()),
                         input_scale=torch.tensor(0.5))
        return parts, exact


class Fp8:
    """As transformers' FP8 has them: a scale for each block, or one for all. The last blocks of a matrix may be cut."""
    def __init__(self, block=None):
        self.block = block

    def __call__(self, leaf, value, generator):
        outputs, inputs = value.shape
        rows, columns = self.block or (outputs, inputs)
        padded = torch.zeros(-(-outputs // rows) * rows, -(-inputs // columns) * columns)
        padded[:outputs, :inputs] = value
        scale = padded.unflatten(1, (-1, columns)).unflatten(0, (-1, rows)).abs().amax((1, 3)) / 448
        each = scale.repeat_interleave(rows, 0).repeat_interleave(columns, 1)[:outputs, :inputs]
        codes = (value / each).to(torch.float8_e4m3fn)
        exact = codes.float() * each
        if self.block is None:
            return dict(weight=codes, weight_scale_inv=scale.reshape(()), activation_scale=torch.tensor(0.5)), exact
        return dict(weight=codes, weight_scale_inv=scale), exact


class BitsAndBytes:
    """bitsandbytes' own. `kinds`: of a matrix by its name: nf4 or fp4, nested or not; or 8 bits."""
    def __init__(self, kinds):
        self.kinds = kinds

    def __call__(self, leaf, value, generator):
        from bitsandbytes import functional
        kind, block, nested = self.kinds(leaf)
        if kind == "int8":
            # Steps that are numbers of f16, which is what becomes of them.
            largest = (value.abs().amax(1) / 127).half().float() * 127
            codes = (value * (127 / largest)[:, None]).round().clamp(-127, 127).to(torch.int8)
            return (dict(weight=codes, SCB=largest, weight_format=torch.tensor(0, dtype=torch.uint8)),
                    functional.int8_vectorwise_dequant(codes, largest))
        packed, state = functional.quantize_4bit(value, blocksize=block, quant_type=kind, compress_statistics=nested)
        parts = {f"weight.{name}": tensor for name, tensor in state.as_dict(packed=True).items()}
        # On a CPU it takes blocks for those of rows, which those that it makes are not.
        state.shape = torch.Size((value.numel() // block, block))
        exact = functional.dequantize_4bit(packed, state).reshape(value.shape)
        assert (exact - value).abs().max() < 0.2 * value.abs().max()
        return parts | dict(weight=packed), exact


def tables(leaf):
    """4 bits with scales of scales, without, and in blocks that rows do not begin with."""
    return {"q_proj": ("nf4", 64, False), "v_proj": ("nf4", 128, True)}.get(leaf, ("nf4", 64, True))


def mixed(leaf):
    """4 bits in groups, 4 with zero points, 8 for each output, 3 in groups."""
    group = dict(num_bits=4, type="int", symmetric=True, strategy="group", group_size=GROUP)
    return {"o_proj": dict(num_bits=8, type="int", symmetric=True, strategy="channel"), "down_proj": group | dict(num_bits=3),
            "gate_up_proj": group | dict(symmetric=False)}.get(leaf, group)


def whole_numbers(leaf):
    channel = dict(num_bits=8, type="int", symmetric=True, strategy="channel")
    return channel | dict(symmetric=False) if leaf == "up_proj" else channel


def floats(leaf):
    return dict(num_bits=8, type="float", symmetric=True, strategy="tensor" if leaf == "q_proj" else "channel")


def zero_biases(config):
    """What early quantisers put beside each matrix."""
    shape = weights.architecture(config)
    return {name.replace(".weight", ".bias"): torch.zeros(p.shape[0]).half() for name, p in shape.items() if is_linear(name)}


def scales_of_kv(config):
    return {f"model.layers.{i}.self_attn.{kv}_scale": torch.tensor([0.25]) for i in range(config["num_hidden_layers"]) for kv in "kv"}


def told_compressed(format, **weights_args):
    return dict(quant_method="compressed-tensors", format=format, ignore=["lm_head"], kv_cache_scheme=None, quantization_status="compressed",
                config_groups=dict(group_0=dict(targets=["Linear"], input_activations=None, output_activations=None, weights=weights_args)))


BITS = {"q_proj": 8, "k_proj": 3, "v_proj": 2, "down_proj": 8, "up_proj": 3}
GPTQ = dict(quant_method="gptq", bits=4, group_size=GROUP, desc_act=False, sym=True, checkpoint_format="gptq")
BNB = dict(quant_method="bitsandbytes", bnb_4bit_compute_dtype="bfloat16", bnb_4bit_quant_storage="uint8", bnb_4bit_quant_type="nf4",
           bnb_4bit_use_double_quant=True, llm_int8_skip_modules=None, llm_int8_threshold=6.0)
QUANTIZED = (
    Quantized("gptq", SMALL, Gptq({}), GPTQ, more=zero_biases, dtype="float16"),
    Quantized("gptq-glm4", edit(GLM4, vocab_size=96), Gptq({}), GPTQ, seed=49, dtype="float16"),
    Quantized("gptq-act-order", SMALL, Gptq({}, symmetric=False, shuffled=True), GPTQ | dict(sym=False, desc_act=True), seed=41, dtype="float16"),
    Quantized("gptq-bits", SMALL, Gptq(BITS, symmetric=False), GPTQ | dict(sym=False, dynamic={}), seed=60, dtype="float16"),
    Quantized("awq", edit(QWEN2, vocab_size=96), Awq(), dict(quant_method="awq", bits=4, group_size=GROUP, version="gemm", zero_point=True,
                                         modules_to_not_convert=None), seed=52, dtype="float16"),
    Quantized("compressed-packed", edit(LONGROPE, vocab_size=96), Compressed("pack-quantized", mixed), told_compressed("pack-quantized", **mixed("")), seed=70),
    Quantized("compressed-int8", SMALL, Compressed("int-quantized", whole_numbers), told_compressed("int-quantized", **whole_numbers("")), seed=45),
    Quantized("compressed-fp8", SMALL, Compressed("float-quantized", floats, torch.float32), told_compressed("float-quantized", **floats("")), seed=46,
              more=scales_of_kv),
    Quantized("compressed-fp4", SMALL, Fp4(), told_compressed("mixed-precision", num_bits=4, type="float", strategy="tensor_group", group_size=16), seed=82),
    Quantized("fp8-blocks", SMALL, Fp8((48, 32)), dict(quant_method="fp8", fmt="e4m3", activation_scheme="dynamic", weight_block_size=[48, 32]), seed=47),
    Quantized("bnb-4bit", SMALL, BitsAndBytes(tables), BNB | dict(load_in_4bit=True), seed=80),
    Quantized("bnb-8bit", SMALL, BitsAndBytes(lambda leaf: ("int8", None, None)), BNB | dict(load_in_8bit=True), seed=81),
    Quantized("fp8-ministral3", MINISTRAL3, Fp8(), dict(quant_method="fp8", activation_scheme="static", weight_block_size=None,
                                                        modules_to_not_convert=["lm_head"]), seed=48),
)


def is_linear(name):
    return name.endswith("_proj.weight")


def write(quantized, out, same):
    """The checkpoint in `out`; in `same` one of what its matrices are."""
    config = quantized.config
    weights.write_config(config | dict(quantization_config=quantized.told), out)
    weights.write_config(config, same)
    generator = torch.Generator().manual_seed(quantized.seed)
    held, exact = dict(quantized.more(config)) if quantized.more else {}, {}
    for name, value in weights.tensors(config, quantized.seed).items():
        if not is_linear(name):
            held[name] = value.to(getattr(torch, quantized.dtype))
            exact[name] = held[name].float()
            continue
        base = name.removesuffix(".weight")
        parts, exact[name] = quantized.by(base.rsplit(".", 1)[1], value.float(), generator)
        held |= {f"{base}.{part}": tensor.contiguous() for part, tensor in parts.items()}
    exact = {name: value.float().contiguous() for name, value in exact.items()}
    save_file(held, out / "model.safetensors", metadata={"format": "pt"})
    save_file(exact, same / "model.safetensors", metadata={"format": "pt"})
