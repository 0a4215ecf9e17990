"""Hugging Face transformers' continuous batching on a GPU, bf16, random weights of a folder's config.json.

    gpu_hf.py FOLDER REQUESTS PROMPT GENERATED [ATTENTION [REPS]]

ATTENTION is what `attn_implementation` takes [sdpa]. Prints a line of JSON: the seconds of each repetition, from the first request
that is handed over to the last that is answered (making the manager and its warm-up are not counted), and generated tokens/s of the
median.
"""
import json
import random
import statistics
import sys
import time

import torch
import transformers


def collect(manager, prompts, generated):
    begin = time.monotonic()
    manager.add_requests(inputs=prompts, max_new_tokens=generated)
    tokens = 0
    for _ in prompts:
        result = None
        while result is None or not result.is_finished():
            result = manager.get_result(timeout=1)
            if result is None and not manager.is_running():
                sys.exit("the manager ended early")
        tokens += len(result.generated_tokens)
    assert tokens == len(prompts) * generated, tokens
    return time.monotonic() - begin


def main(folder, requests, prompt, generated, attention="sdpa", reps="2"):
    requests, prompt, generated, reps = map(int, (requests, prompt, generated, reps))
    config = transformers.AutoConfig.from_pretrained(folder)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    with torch.device(device):
        model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16, attn_implementation=f"paged|{attention}")
    model.eval()
    settings = transformers.GenerationConfig(do_sample=False, eos_token_id=-1, pad_token_id=0, max_new_tokens=generated)
    draw = random.Random(1)
    times = []
    for _ in range(reps):
        prompts = [[draw.randrange(1000, config.vocab_size) for _ in range(prompt)] for _ in range(requests)]
        hints = transformers.generation.continuous_batching.utils.WorkloadHints(
            max_prompt_length=prompt, max_generated_length=generated, num_requests=requests)
        with model.continuous_batching_context_manager(generation_config=settings, workload_hints=hints) as manager:
            times.append(collect(manager, prompts, generated))
        print(f"{times[-1]:.2f} s", file=sys.stderr, flush=True)
    rate = requests * generated / statistics.median(times)
    print(json.dumps({"peer": f"transformers {transformers.__version__}, PyTorch {torch.__version__}, paged|{attention}",
                      "seconds": times, "generated_tokens_per_s": rate}))


main(*sys.argv[1:])
