"""Accelerate's offload to host memory on a GPU: layers on the host, each copied to the GPU as it is computed; one batch.

    gpu_accelerate.py FOLDER GPU_GIB BATCHES PROMPT GENERATED PASSES

Weights in 16 bits of a folder's config.json (all alike: nothing here depends on their values), in memory limited to GPU_GIB. It begins
once a line comes on standard input, or that ends. BATCHES (N[,N...]) are tried in this order until one does not run out of memory. Of
the passes that make GENERATED tokens PASSES are run, the prompts' among them: each moves the same weights, so the others are counted
as the median of those after the first. A line of JSON.
"""
import json
import random
import statistics
import sys
import time

import accelerate
import torch
import transformers


def load(folder):
    config = transformers.AutoConfig.from_pretrained(folder)
    with accelerate.init_empty_weights(include_buffers=False):
        model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.float16, attn_implementation="sdpa").eval()
    model.to_empty(device="cpu")
    model.tie_weights()
    with torch.no_grad():
        for weights in model.parameters():
            weights.fill_(0.01)
    layers = "model.decoder.layers" if config.model_type == "opt" else "model.layers"
    # Embeddings, norms and head, which every pass needs, on the GPU; layers on the host.
    names = {name.rsplit(".", 1)[0] for name, _ in model.named_parameters(remove_duplicate=False)}
    whole = {f"{layers}.{i}" for i in range(config.num_hidden_layers)}
    rest = {name for name in names if not any(name.startswith(f"{layer}.") for layer in whole)}
    return config, accelerate.dispatch_model(model, {**dict.fromkeys(whole, "cpu"), **dict.fromkeys(rest, 0)}, main_device=0, force_hooks=True)


@torch.inference_mode()
def run(model, config, batch, prompt, passes):
    draw = random.Random(1)
    ids = torch.tensor([[draw.randrange(1000, config.vocab_size) for _ in range(prompt)] for _ in range(batch)], device="cuda")
    cache = transformers.DynamicCache()
    times = []
    for _ in range(passes):
        begin = time.monotonic()
        logits = model(input_ids=ids, past_key_values=cache, use_cache=True, logits_to_keep=1).logits
        ids = logits[:, -1].argmax(-1, keepdim=True)
        torch.cuda.synchronize()
        times.append(time.monotonic() - begin)
        print(f"pass of {times[-1]:.2f} s", file=sys.stderr, flush=True)
    return times


def main(folder, gib, batches, prompt, generated, passes):
    prompt, generated, passes = map(int, (prompt, generated, passes))
    config, model = load(folder)
    total = torch.cuda.get_device_properties(0).total_memory
    torch.cuda.set_per_process_memory_fraction(float(gib) * 2**30 / total)
    print("ready", file=sys.stderr, flush=True)
    sys.stdin.readline()
    for batch in map(int, batches.split(",")):
        try:
            times = run(model, config, batch, prompt, passes)
            break
        except torch.OutOfMemoryError:
            print(f"a batch of {batch} has no memory", file=sys.stderr, flush=True)
            torch.cuda.empty_cache()
    else:
        sys.exit("no batch has memory")
    seconds = times[0] + (generated - 1) * statistics.median(times[1:])
    print(json.dumps({"peer": f"accelerate {accelerate.__version__}, transformers {transformers.__version__}", "batch": batch,
                      "pass_seconds": times, "seconds": seconds, "generated_tokens_per_s": batch * generated / seconds}))


main(*sys.argv[1:])
