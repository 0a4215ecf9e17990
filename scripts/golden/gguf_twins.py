"""Tiny models as GGUF files: in the block formats, where transformers dequantises them for the reference, and in bf16 with what
transformers does not read from such files, where the reference is a checkpoint of the same weights."""
import json
import math
from dataclasses import dataclass

import gguf
import numpy as np
import torch

from golden import tokenizer, weights
from golden.variants import (ARCEE, COHERE, COHERE2, ERNIE45, EXAONE4, GEMMA, GEMMA2, GEMMA3, GLM4, GRANITE, LLAMA3, LONGROPE, MINISTRAL3, NEMOTRON, NEOX, OLMO3, PHI,
                             PROMPT, QWEN2, QWEN3, ROPE, SEED_OSS, SMOLLM3, STABLELM, STARCODER2, YARN, edit, llama)

Q = gguf.GGMLQuantizationType
LEGACY = {"attn_q": Q.Q4_1, "attn_k": Q.Q5_0, "attn_v": Q.Q5_1, "attn_output": Q.Q4_1, "ffn_gate": Q.Q5_0,
          "ffn_up": Q.Q5_1, "ffn_down": Q.Q4_1, "output": Q.Q5_1, "token_embd": Q.Q5_0}
K_QUANTS = {"attn_q": Q.Q4_K, "attn_k": Q.Q5_K, "attn_v": Q.Q6_K, "attn_output": Q.Q3_K, "ffn_gate": Q.Q2_K,
            "ffn_up": Q.Q4_K, "ffn_down": Q.Q6_K, "token_embd": Q.Q3_K, "output": Q.Q5_K}
SMALL = llama(vocab_size=304, num_key_value_heads=2)
WIDE = llama(vocab_size=304, num_key_value_heads=1, hidden_size=256, intermediate_size=256, num_hidden_layers=1)


# Heads of 32, for the bands of the scalings.
QWEN2_YARN = edit(QWEN2, vocab_size=304, num_attention_heads=2, num_key_value_heads=1, max_position_embeddings=128,
                  rope_theta=10000.0, rope_scaling=YARN | dict(rope_type="yarn"))
# What llama.cpp makes of the number of heads.
GEMMA3_TWIN = edit(GEMMA3, vocab_size=304, query_pre_attn_scalar=32)
# llama.cpp takes yarn's factor of queries and keys from the stretch.
OLMO3_TWIN = edit(OLMO3, vocab_size=304, rope_scaling=YARN | dict(rope_type="yarn"))
LLAMA3_FREQS = edit(ROPE, vocab_size=304, rope_scaling=LLAMA3 | dict(rope_type="llama3"))


@dataclass(frozen=True)
class Twin:
    """`formats`: of every matrix, or by the tensor's name."""
    name: str
    formats: object
    config: dict
    seed: int = 20
    prompt: int = PROMPT
    # The reference is a checkpoint of these weights, which the file holds exactly; with changes that must change its logits.
    exact: bool = False
    without: tuple = ()

    def format_of(self, leaf):
        return self.formats[leaf] if isinstance(self.formats, dict) else self.formats


TWINS = (
    Twin("gguf-f16", Q.F16, SMALL), Twin("gguf-bf16", Q.BF16, SMALL),
    Twin("gguf-q8_0", Q.Q8_0, SMALL), Twin("gguf-q4_0", Q.Q4_0, SMALL), Twin("gguf-legacy", LEGACY, SMALL),
    Twin("gguf-k", K_QUANTS, WIDE, seed=21),
    Twin("gguf-qwen2-yarn", Q.BF16, QWEN2_YARN, seed=22, exact=True, without=(dict(rope_scaling=None),)),
    Twin("gguf-qwen3", Q.BF16, QWEN3, seed=23, exact=True),
    Twin("gguf-llama3-freqs", Q.BF16, LLAMA3_FREQS, seed=24, exact=True, without=(dict(rope_scaling=None),)),
    Twin("gguf-phi3", Q.BF16, edit(LONGROPE, vocab_size=304), seed=25, exact=True, without=(dict(rope_scaling=None),)),
    Twin("gguf-smollm3", Q.BF16, edit(SMOLLM3, vocab_size=304), seed=26, exact=True,
         without=(dict(no_rope_layer_interval=5),)),
    Twin("gguf-granite", Q.BF16, edit(GRANITE, vocab_size=304), seed=27, exact=True),
    Twin("gguf-gemma", Q.BF16, edit(GEMMA, vocab_size=304), seed=35, exact=True),
    Twin("gguf-gemma2", Q.BF16, edit(GEMMA2, vocab_size=304, query_pre_attn_scalar=32), seed=36, exact=True,
         without=(dict(attn_logit_softcapping=50.0), dict(final_logit_softcapping=None), dict(sliding_window=512))),
    Twin("gguf-gemma3", Q.BF16, GEMMA3_TWIN, seed=28, exact=True),
    Twin("gguf-ministral3", Q.BF16, edit(MINISTRAL3, vocab_size=304), seed=30, exact=True),
    Twin("gguf-olmo3", Q.BF16, OLMO3_TWIN, seed=30, exact=True, without=(dict(sliding_window=512), dict(rope_scaling=None))),
    Twin("gguf-exaone4", Q.BF16, edit(EXAONE4, vocab_size=304), seed=31, exact=True, without=(dict(sliding_window=512),)),
    Twin("gguf-seed-oss", Q.BF16, edit(SEED_OSS, vocab_size=304), seed=32, exact=True),
    Twin("gguf-glm4", Q.BF16, edit(GLM4, vocab_size=304), seed=33, exact=True, without=(dict(partial_rotary_factor=1.0),)),
    Twin("gguf-ernie4_5", Q.BF16, edit(ERNIE45, vocab_size=304), seed=34, exact=True, without=(dict(rope_theta=10000.0),)),
    Twin("gguf-command-r", Q.BF16, edit(COHERE, vocab_size=304), seed=45, exact=True, without=(dict(logit_scale=1.0),)),
    Twin("gguf-command-r-plus", Q.BF16, edit(COHERE, vocab_size=304, use_qk_norm=True), seed=49, exact=True, without=(dict(use_qk_norm=False),)),
    Twin("gguf-cohere2", Q.BF16, edit(COHERE2, vocab_size=304), seed=38, exact=True, without=(dict(sliding_window=512),)),
    Twin("gguf-phi2", Q.BF16, edit(PHI, vocab_size=304), seed=39, exact=True, without=(dict(partial_rotary_factor=1.0),)),
    Twin("gguf-gptneox", Q.BF16, edit(NEOX, vocab_size=304, torch_dtype="bfloat16"), seed=40, exact=True,
         without=(dict(use_parallel_residual=False),)),
    Twin("gguf-starcoder2", Q.BF16, edit(STARCODER2, vocab_size=304, sliding_window=None), seed=42, exact=True),
    Twin("gguf-stablelm-12b", Q.BF16, edit(STABLELM, vocab_size=304, qk_layernorm=True, use_parallel_residual=True), seed=52, exact=True,
         without=(dict(qk_layernorm=False),)),
    Twin("gguf-arcee", Q.BF16, edit(ARCEE, vocab_size=304), seed=50, exact=True, without=(dict(hidden_act="relu"),)),
    Twin("gguf-nemotron", Q.BF16, edit(NEMOTRON, vocab_size=304), seed=51, exact=True, without=(dict(partial_rotary_factor=1.0),)),
    Twin("gguf-stablelm", Q.BF16, edit(STABLELM, vocab_size=304), seed=43, exact=True, without=(dict(partial_rotary_factor=1.0),)),
)

NAMES = {"self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v",
         "self_attn.q_norm": "attn_q_norm", "self_attn.k_norm": "attn_k_norm", "self_attn.o_proj": "attn_output", "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up",
         "mlp.down_proj": "ffn_down", "input_layernorm": "attn_norm", "post_attention_layernorm": "ffn_norm",
         "self_attn.qkv_proj": "attn_qkv", "mlp.gate_up_proj": "ffn_up",
         "model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output"}


GEMMA_NAMES = NAMES | {"post_attention_layernorm": "post_attention_norm", "pre_feedforward_layernorm": "ffn_norm",
                       "post_feedforward_layernorm": "post_ffw_norm"}
# Those whose norms stand behind attention and MLP too, or alone.
SEED_OSS_NAMES = NAMES | {"post_attention_layernorm": "post_attention_norm"}
GLM4_NAMES = NAMES | {"post_self_attn_layernorm": "post_attention_norm", "post_mlp_layernorm": "post_ffw_norm"}
NAMES_OF = {"glm4": GLM4_NAMES, "gemma2": GEMMA_NAMES, "gemma3_text": GEMMA_NAMES, "olmo3": GEMMA_NAMES, "exaone4": GEMMA_NAMES, "seed_oss": SEED_OSS_NAMES}
# Those with layer norms.
PLAIN_NAMES = NAMES | {"self_attn.dense": "attn_output", "mlp.fc1": "ffn_up", "mlp.fc2": "ffn_down", "mlp.c_fc": "ffn_up", "mlp.c_proj": "ffn_down",
                       "attention.query_key_value": "attn_qkv", "attention.dense": "attn_output", "mlp.dense_h_to_4h": "ffn_up",
                       "mlp.dense_4h_to_h": "ffn_down", "model.final_layernorm": "output_norm", "gpt_neox.embed_in": "token_embd",
                       "gpt_neox.final_layer_norm": "output_norm", "embed_out": "output"}
NAMES_OF |= dict.fromkeys(("phi", "gpt_neox", "starcoder2"), PLAIN_NAMES)
ARCHITECTURES = {"gemma3_text": "gemma3", "ministral3": "mistral3", "olmo3": "olmo2", "cohere": "command-r", "phi": "phi2",
                 "gpt_neox": "gptneox"}


def gguf_name(name, names=NAMES):
    """model.layers.0.self_attn.q_proj.weight -> (blk.0.attn_q.weight, attn_q)"""
    stem, kind = name.rsplit(".", 1)
    if stem in names:
        return f"{names[stem]}.{kind}", names[stem]
    _, _, layer, leaf = stem.split(".", 3)
    return f"blk.{layer}.{names[leaf]}.{kind}", names[leaf]


def interleave(w, heads):
    """GGUF's Llama rotates neighbouring pairs, Hugging Face's rotates halves: rows of a head change places."""
    rows, columns = w.shape
    return w.reshape(heads, 2, rows // heads // 2, columns).swapaxes(1, 2).reshape(rows, columns)


def by_parts(w, heads):
    """Hugging Face's GPT-NeoX has queries, keys and values head by head, GGUF those of all heads: rows (or numbers) change places."""
    return w.reshape(heads, 3, -1, *w.shape[1:]).swapaxes(0, 1).reshape(w.shape)


# Bytes of a block's scales, by format: (offset, what). Everything else in a block may be any bytes at all.
SCALES = {Q.Q2_K: (80, 82), Q.Q3_K: (108,), Q.Q4_K: (0, 2), Q.Q5_K: (0, 2), Q.Q6_K: (208,)}
MIDDLE = {Q.Q2_K: 1.5, Q.Q4_K: 7.5, Q.Q5_K: 15.5}    # of the quants: a minimum of so many steps centres them


def random_blocks(shape, format, std, rng):
    """The gguf package cannot quantise to k-quants, but any bytes are k-quants: every scale and sign bit is exercised."""
    per_block, size = gguf.GGML_QUANT_SIZES[format]
    blocks = rng.integers(0, 256, (math.prod(shape) // per_block, size), dtype=np.uint8)

    def with_scale(d):
        for i, at in enumerate(SCALES[format]):
            scale = d * (MIDDLE[format] if i else 1.0) * rng.uniform(0.8, 1.2, len(blocks))
            blocks[:, at:at + 2] = scale.astype(np.float16).view(np.uint8).reshape(-1, 2)
        return blocks.reshape(shape[0], -1)

    spread = gguf.dequantize(with_scale(0.01), format).std()
    return with_scale(0.01 * std / spread)


def tensor(twin, name, leaf, value, rng):
    value = value.float().numpy()
    kind = twin.config["model_type"]
    if kind == "gpt_neox" and leaf == "attn_qkv":
        value = by_parts(value, twin.config["num_attention_heads"])
    if "norm" in leaf or name.endswith(".bias"):
        is_from_one = kind.startswith(("gemma", "nemotron")) and name.endswith("norm.weight")
        return value + (1.0 if is_from_one else 0.0), Q.F32
    if kind in ("llama", "ministral3", "smollm3", "granite", "arcee") and leaf in ("attn_q", "attn_k"):
        key = "num_attention_heads" if leaf == "attn_q" else "num_key_value_heads"
        value = interleave(value, twin.config[key])
    format = twin.format_of(leaf)
    if format in SCALES:
        return random_blocks(value.shape, format, value.std(), rng), format
    return gguf.quantize(np.ascontiguousarray(value), format), format


def write(twin, out):
    """model.gguf, with its tokenizer and chat template."""
    out.mkdir(parents=True, exist_ok=True)
    c = twin.config
    file = gguf.GGUFWriter(out / "model.gguf", ARCHITECTURES.get(c["model_type"], c["model_type"]))
    file.add_name(twin.name)
    file.add_context_length(c["max_position_embeddings"])
    file.add_embedding_length(c["hidden_size"])
    file.add_block_count(c["num_hidden_layers"])
    file.add_feed_forward_length(c["intermediate_size"])
    file.add_head_count(c["num_attention_heads"])
    if "num_key_value_heads" in c:
        file.add_head_count_kv(c["num_key_value_heads"])
    head_dim = c.get("head_dim", c["hidden_size"] // c["num_attention_heads"])
    file.add_rope_dimension_count(int(head_dim * c.get("partial_rotary_factor", c.get("rotary_pct", 1.0))))
    if "head_dim" in c:
        file.add_key_length(head_dim)
        file.add_value_length(head_dim)
    theta = c.get("rope_theta") or c.get("rotary_emb_base") or c["rope_parameters"]["rope_theta"]
    file.add_rope_freq_base(theta)
    scaling = c.get("rope_scaling") or c.get("rope_parameters") or {}
    if scaling.get("rope_type") == "yarn":
        file.add_rope_scaling_type(gguf.RopeScalingType.YARN)
        file.add_rope_scaling_factor(scaling["factor"])
        file.add_rope_scaling_orig_ctx_len(scaling["original_max_position_embeddings"])
    if scaling.get("rope_type") == "llama3":
        file.add_tensor("rope_freqs.weight", llama3_factors(scaling, theta, head_dim))
    if scaling.get("rope_type") == "linear":
        file.add_rope_scaling_type(gguf.RopeScalingType.LINEAR)
        file.add_rope_scaling_factor(scaling["factor"])
    if "short_factor" in scaling:
        add_longrope(file, scaling, c)
    add_own(file, c)
    if "rms_norm_eps" in c:
        file.add_layer_norm_rms_eps(c["rms_norm_eps"])
    else:
        file.add_layer_norm_eps(c.get("layer_norm_eps") or c.get("norm_epsilon") or c["norm_eps"])
    file.add_vocab_size(c["vocab_size"])
    add_tokenizer(file)
    rng = np.random.default_rng(twin.seed)
    for name, value in joined(weights.tensors(c, twin.seed)).items():
        full, leaf = gguf_name(name, NAMES_OF.get(c["model_type"], NAMES))
        data, format = tensor(twin, name, leaf, value, rng)
        file.add_tensor(full, data, raw_dtype=format)
    file.write_header_to_file()
    file.write_kv_data_to_file()
    file.write_tensors_to_file()
    file.close()


def joined(state):
    """The scales of each head's norm in one (StableLM's), under the name of those that others have in one."""
    heads, out = {}, {}
    for name, value in state.items():
        before, of_head, after = name.partition("_layernorm.norms.")
        if of_head:
            heads.setdefault(f"{before}_norm.weight", {})[int(after.split(".")[0])] = value
        else:
            out[name] = value
    return out | {name: torch.stack([of[i] for i in sorted(of)]) for name, of in heads.items()}


def add_longrope(file, scaling, c):
    """As llama.cpp's converter writes it for Phi-3."""
    original = c["original_max_position_embeddings"]
    file.add_rope_scaling_orig_ctx_len(original)
    stretch = c["max_position_embeddings"] / original
    file.add_rope_scaling_attn_factors(math.sqrt(1 + math.log(stretch) / math.log(original)))
    for name in ("long", "short"):
        file.add_tensor(f"rope_factors_{name}.weight", np.array(scaling[f"{name}_factor"], dtype=np.float32))


def add_own(file, c):
    """What only one architecture has."""
    if c["model_type"] == "granite":
        file.add_embedding_scale(c["embedding_multiplier"])
        file.add_attention_scale(c["attention_multiplier"])
        file.add_residual_scale(c["residual_multiplier"])
        file.add_logit_scale(c["logits_scaling"])
    if c["model_type"] in ("cohere", "cohere2"):
        file.add_logit_scale(c["logit_scale"])
    if c["model_type"] == "cohere2":
        file.add_sliding_window(c["sliding_window"])
        file.add_uint32("cohere2.attention.sliding_window_pattern", c["sliding_window_pattern"])
    if c["model_type"] in ("gpt_neox", "stablelm"):
        # Of StableLM nobody goes by it, and its converter writes it so.
        file.add_parallel_residual(c["use_parallel_residual"] or c["model_type"] == "stablelm")
    if c["model_type"] == "gemma2":
        file.add_sliding_window(c["sliding_window"])
        file.add_attn_logit_softcapping(c["attn_logit_softcapping"])
        file.add_final_logit_softcapping(c["final_logit_softcapping"])
    if c["model_type"] == "gemma3_text":
        file.add_sliding_window(c["sliding_window"])
        file.add_uint32("gemma3.attention.sliding_window_pattern", c["sliding_window_pattern"])
        file.add_float32("gemma3.rope.freq_base_swa", c["rope_local_base_freq"])
    if c["model_type"] == "ministral3":
        file.add_rope_scaling_yarn_log_mul(c["rope_parameters"]["mscale_all_dim"])
        file.add_attn_temperature_scale(c["rope_parameters"]["llama_4_scaling_beta"])
    if c["model_type"] in ("olmo3", "exaone4"):
        file.add_sliding_window(c["sliding_window"])
        file.add_sliding_window_pattern([kind == "sliding_attention" for kind in c["layer_types"]])


def llama3_factors(scaling, theta, head_dim):
    """By how much each frequency is divided, as llama.cpp's converter writes it for Llama 3.1 and on."""
    original, factor = scaling["original_max_position_embeddings"], scaling["factor"]
    low, high = scaling["low_freq_factor"], scaling["high_freq_factor"]
    factors = []
    for i in range(0, head_dim, 2):
        turns = original / (2 * math.pi * theta ** (i / head_dim))
        if turns > high:
            factors.append(1.0)
        elif turns < low:
            factors.append(factor)
        else:
            smooth = (turns - low) / (high - low)
            factors.append(1 / ((1 - smooth) / factor + smooth))
    return np.array(factors, dtype=np.float32)


def add_tokenizer(file):
    spec = json.loads(tokenizer.train().to_str())
    vocab = sorted(spec["model"]["vocab"].items(), key=lambda item: item[1])
    special = [t in tokenizer.SPECIAL for t, _ in vocab]
    file.add_tokenizer_model("gpt2")
    file.add_tokenizer_pre("default")
    file.add_token_list([t for t, _ in vocab])
    file.add_token_types([gguf.TokenType.CONTROL if s else gguf.TokenType.NORMAL for s in special])
    file.add_token_merges([" ".join(m) if isinstance(m, list) else m for m in spec["model"]["merges"]])
    file.add_bos_token_id(1)
    file.add_eos_token_id(2)
    file.add_chat_template(tokenizer.TEMPLATE)
