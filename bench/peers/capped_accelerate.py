"""Accelerate's disk offload on the processor: every module on the drive, one batch.

    capped_accelerate.py prepare MODEL_DIR OFFLOAD_DIR               outside of the limit: a file for each tensor
    capped_accelerate.py run MODEL_DIR OFFLOAD_DIR BATCH PROMPT GENERATED

It prints a line of JSON: seconds of prompts and of decoding, generated tokens/s.
"""
import json
import os
import pathlib
import random
import sys
import time

import torch
from accelerate import dispatch_model, init_empty_weights
from accelerate.utils import offload_weight, save_offload_index
from safetensors import safe_open
from transformers import AutoConfig, AutoModelForCausalLM, DynamicCache


def prepare(model, folder):
    pathlib.Path(folder).mkdir(parents=True, exist_ok=True)
    index = {}
    for file in sorted(pathlib.Path(model).glob("*.safetensors")):
        with safe_open(file, "pt") as stored:
            for name in stored.keys():
                index = offload_weight(stored.get_tensor(name), name, folder, index=index)
                if name == "model.embed_tokens.weight" and AutoConfig.from_pretrained(model).tie_word_embeddings:
                    index = offload_weight(stored.get_tensor(name), "lm_head.weight", folder, index=index)
    save_offload_index(index, folder)


def load(model, folder):
    config = AutoConfig.from_pretrained(model)
    with init_empty_weights(include_buffers=False):
        empty = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16, attn_implementation="sdpa").eval()
    places = {"model.embed_tokens": "disk", "model.norm": "disk", "lm_head": "disk", "model.rotary_emb": "cpu"}
    places.update({f"model.layers.{i}": "disk" for i in range(config.num_hidden_layers)})
    return dispatch_model(empty, places, main_device="cpu", offload_dir=folder, force_hooks=True)


def run(model, folder, batch, prompt, generated):
    model = load(model, folder)
    draw = random.Random(1)
    ids = torch.tensor([[draw.randrange(1000, 30000) for _ in range(prompt)] for _ in range(batch)])
    cache = DynamicCache()
    times = [time.monotonic()]
    with torch.inference_mode():
        for _ in range(generated):
            logits = model(input_ids=ids, past_key_values=cache, use_cache=True, logits_to_keep=1).logits
            ids = logits[:, -1].argmax(-1, keepdim=True)
            times.append(time.monotonic())
    print(json.dumps({"prefill_s": times[1] - times[0], "decode_s": times[-1] - times[1],
                      "generated_tokens_per_s": batch * generated / (times[-1] - times[0])}))


torch.set_num_threads(len(os.sched_getaffinity(0)))
if sys.argv[1] == "prepare":
    prepare(*sys.argv[2:])
else:
    run(*sys.argv[2:4], *map(int, sys.argv[4:]))
