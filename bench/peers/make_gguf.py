"""A Hugging Face Llama folder as a GGUF file with the same bf16 weights, for llama.cpp.

    make_gguf.py DIR OUT.gguf TOKENIZER.gguf       the vocabulary is copied from TOKENIZER.gguf
    llama-quantize OUT.gguf OUT-q8_0.gguf Q8_0     then makes the other formats (Q4_0, ...)

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


def convert(folder, path, tokenizer):
    config = json.loads((folder / "config.json").read_text())
    if config["model_type"] != "llama" or config.get("rope_scaling"):
        sys.exit(f"{folder} is not a plain Llama; use llama.cpp's own converter")
    out = gguf.GGUFWriter(path, "llama")
    add_shape(out, config)
    copy_tokenizer(out, tokenizer)
    for name, value in tensors(folder):
        if value.ndim == 1:
            out.add_tensor(gguf_name(name), value.float().numpy())
            continue
        heads = heads_of(name, config)
        bits = value.bfloat16().view(torch.uint16).numpy()
        bits = np.ascontiguousarray(interleave(bits, heads) if heads else bits)
        out.add_tensor(gguf_name(name), bits.view(np.uint8), raw_dtype=gguf.GGMLQuantizationType.BF16)
    out.write_header_to_file()
    out.write_kv_data_to_file()
    out.write_tensors_to_file()
    out.close()


if __name__ == "__main__":
    if len(sys.argv) != 4:
        sys.exit(__doc__)
    convert(pathlib.Path(sys.argv[1]), sys.argv[2], sys.argv[3])
