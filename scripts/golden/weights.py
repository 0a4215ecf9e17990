"""Random weights with lively logits: blocks that weigh more than the embedding, norms and biases far from 1 and 0."""
import copy
import json
import math

import torch
import transformers
from safetensors.torch import save_file

# Standard deviation of a linear's weights, times 1/sqrt(inputs).
GAIN = {"q_proj": 0.9, "qkv_proj": 0.9, "k_proj": 0.9, "o_proj": 0.7, "down_proj": 0.7, "lm_head": 3.0}


def architecture(config):
    """The class's parameters by name, on no device."""
    cls = getattr(transformers, config["architectures"][0])
    built = cls.config_class(**copy.deepcopy(config))      # some write into what they are given
    with torch.device("meta"):
        model = cls(built)
    return dict(model.named_parameters())


def draw(name, shape, tied, generator, norm=1.0):
    noise = torch.randn(shape, generator=generator)
    leaf = name.split(".")[-2]
    if name.endswith(".bias"):
        return 0.3 * noise
    if "norm" in leaf or len(shape) == 1:
        return norm + 0.25 * noise
    if leaf.startswith("embed"):
        return (2.4 / math.sqrt(shape[1]) if tied else 0.5) * noise     # tied to the head, more would only repeat itself
    return GAIN.get(leaf, 1.0) * noise / math.sqrt(shape[1])


def tensors(config, seed):
    """Parameters in order of name; bf16 values, so that storing them in any dtype loses nothing."""
    generator = torch.Generator().manual_seed(1000 + seed)
    tied = config.get("tie_word_embeddings", True)
    out = {}
    norm = 0.0 if config["model_type"].startswith(("gemma", "nemotron")) else 1.0      # these add 1 to what files hold
    for name, p in sorted(architecture(config).items()):
        out[name] = draw(name, tuple(p.shape), tied, generator, norm).bfloat16()
    return out


def write_config(config, out):
    """config.json and generation_config.json."""
    out.mkdir(parents=True, exist_ok=True)
    (out / "config.json").write_text(json.dumps(config, indent=2) + "\n")
    ids = {k: config[k] for k in ("bos_token_id", "eos_token_id", "pad_token_id") if k in config}
    (out / "generation_config.json").write_text(json.dumps(ids, indent=2) + "\n")


def stored(name, variant):
    """What a variant's files call a tensor."""
    before = next((b for b in variant.before if name.startswith(b)), None)
    return variant.before[before] + name[len(before):] if before else variant.names.get(name, name)


def write(variant, out):
    """config.json, generation_config.json and model.safetensors (or shards and their index)."""
    write_config(variant.config, out)
    state = {stored(k, variant): v.to(getattr(torch, variant.dtype)) for k, v in tensors(variant.config, variant.seed).items()}
    if variant.shards == 1:
        save_file(state, out / "model.safetensors", metadata={"format": "pt"})
    else:
        write_shards(state, variant.shards, out)


def write_shards(state, n, out):
    names = list(state)
    weight_map = {}
    for i in range(n):
        file = f"model-{i + 1:05d}-of-{n:05d}.safetensors"
        part = {k: state[k] for k in names[i::n]}      # interleaved: layers straddle the files
        save_file(part, out / file, metadata={"format": "pt"})
        weight_map |= {k: file for k in part}
    total = sum(v.numel() * v.element_size() for v in state.values())
    index = {"metadata": {"total_size": total}, "weight_map": dict(sorted(weight_map.items()))}
    (out / "model.safetensors.index.json").write_text(json.dumps(index, indent=2) + "\n")
