"""A Hugging Face Llama folder as a GGUF file with the same bf16 weights, for llama.cpp.

    make_gguf.py DIR OUT.gguf TOKENIZER.gguf       the vocabulary is copied from TOKENIZER.gguf
    llama-quantize OUT.gguf OUT-q8_0.gguf Q8_0     then makes the other formats (Q4_0, ...)
    make_gguf.py --random Q4_0|BF16 DIR OUT.gguf TOKENIZER.gguf
                                                   in this format at once, with random numbers, the same in all layers: of
                                                   DIR the config.json alone is read

Needs the packages gguf, torch and safetensors (bench/setup-peers.sh DIR hf).
"""
import json
import pathlib
import sys

import gguf
import numpy as np
import torch
from safetensors import safe_open

NAMES = {"self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v",
         "self_attn.o_proj": "attn_output", "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up",
         "mlp.down_proj": "ffn_down", "input_layernorm": "attn_norm", "post_attention_layernorm": "ffn_norm"}
TOP = {"model.embed_tokens.weight": "token_embd.weight", "model.norm.weight": "output_norm.weight",
       "lm_head.weight": "output.weight"}


def gguf_name(name):
    if name in TOP:
        return TOP[name]
    _, _, layer, leaf = name.removesuffix(".weight").split(".", 3)
    return f"blk.{layer}.{NAMES[leaf]}.weight"


def interleave(rows, heads):
    """GGUF's Llama rotates neighbouring pairs, Hugging Face's rotates halves: the rows of a head change places."""
    n, columns = rows.shape
    return rows.reshape(heads, 2, n // heads // 2, columns).swapaxes(1, 2).reshape(n, columns)


def tensors(folder):
    for file in sorted(folder.glob("model*.safetensors")):
        with safe_open(file, "pt") as stored:
            for name in stored.keys():
                yield name, stored.get_tensor(name)


def heads_of(name, config):
    if "q_proj" in name:
        return config["num_attention_heads"]
    return config["num_key_value_heads"] if "k_proj" in name else None


def add_shape(out, c):
    rope = c.get("rope_parameters") or {}
    out.add_context_length(c["max_position_embeddings"])
    out.add_embedding_length(c["hidden_size"])
    out.add_block_count(c["num_hidden_layers"])
    out.add_feed_forward_length(c["intermediate_size"])
    out.add_head_count(c["num_attention_heads"])
    out.add_head_count_kv(c["num_key_value_heads"])
    out.add_rope_dimension_count(c.get("head_dim") or c["hidden_size"] // c["num_attention_heads"])
    out.add_rope_freq_base(rope.get("rope_theta", c.get("rope_theta", 10000.0)))
    out.add_layer_norm_rms_eps(c["rms_norm_eps"])
    out.add_vocab_size(c["vocab_size"])


def copy_tokenizer(out, source):
    for field in gguf.GGUFReader(source).fields.values():
        if field.name.startswith("tokenizer."):
            kind = field.types[0]
            inner = field.types[-1] if kind == gguf.GGUFValueType.ARRAY else None
            out.add_key_value(field.name, field.contents(), kind, inner)


def random_q4_0(out_features, in_features):
    """Blocks of 32: a scale of some hundredths, then codes."""
    draw = np.random.default_rng(in_features)
    blocks = draw.integers(0, 256, (out_features, in_features // 32, 18), dtype=np.uint8)
    blocks[..., :2] = np.array([0.02 / in_features ** 0.25], dtype="<f2").view(np.uint8)
    return blocks.reshape(out_features, -1)


def random_bf16(out_features, in_features):
    """Numbers of either sign, of some hundredths."""
    draw = np.random.default_rng(in_features)
    values = draw.random((out_features, in_features), dtype=np.float32) - 0.5
    return torch.from_numpy(values * 0.2 / in_features ** 0.25).bfloat16().view(torch.uint16).numpy().view(np.uint8)


RANDOM = {"Q4_0": random_q4_0, "BF16": random_bf16}


def add_random(out, c, format):
    hidden, inner = c["hidden_size"], c["intermediate_size"]
    head = c.get("head_dim") or hidden // c["num_attention_heads"]
    q, kv = head * c["num_attention_heads"], head * c["num_key_value_heads"]
    shapes = {"attn_q": (q, hidden), "attn_k": (kv, hidden), "attn_v": (kv, hidden), "attn_output": (hidden, q),
              "ffn_gate": (inner, hidden), "ffn_up": (inner, hidden), "ffn_down": (hidden, inner)}
    layer = {name: RANDOM[format](*shape) for name, shape in shapes.items()}
    table, norm = RANDOM[format](c["vocab_size"], hidden), np.ones(hidden, dtype=np.float32)
    named = {"token_embd": table, "output": table, "output_norm": norm}
    for i in range(c["num_hidden_layers"]):
        named |= {f"blk.{i}.{name}": value for name, value in {**layer, "attn_norm": norm, "ffn_norm": norm}.items()}
    for name, value in named.items():
        kind = None if value is norm else gguf.GGMLQuantizationType[format]
        out.add_tensor(f"{name}.weight", value, raw_dtype=kind)


def add_converted(out, folder, config):
    for name, value in tensors(folder):
        if value.ndim == 1:
            out.add_tensor(gguf_name(name), value.float().numpy())
            continue
        heads = heads_of(name, config)
        bits = value.bfloat16().view(torch.uint16).numpy()
        bits = np.ascontiguousarray(interleave(bits, heads) if heads else bits)
        out.add_tensor(gguf_name(name), bits.view(np.uint8), raw_dtype=gguf.GGMLQuantizationType.BF16)


def write(folder, path, tokenizer, random):
    config = json.loads((folder / "config.json").read_text())
    if config["model_type"] != "llama" or config.get("rope_scaling"):
        sys.exit(f"{folder} is not a plain Llama; use llama.cpp's own converter")
    out = gguf.GGUFWriter(path, "llama")
    add_shape(out, config)
    copy_tokenizer(out, tokenizer)
    if random:
        add_random(out, config, random)
    else:
        add_converted(out, folder, config)
    out.write_header_to_file()
    out.write_kv_data_to_file()
    out.write_tensors_to_file()
    out.close()


if __name__ == "__main__":
    random = sys.argv[2] if sys.argv[1:2] == ["--random"] and len(sys.argv) > 2 else None
    paths = sys.argv[3 if random else 1:]
    if len(paths) != 3 or random not in (None, *RANDOM):
        sys.exit(__doc__)
    write(pathlib.Path(paths[0]), *paths[1:], random)
