"""PyTorch's bf16 linear layers (oneDNN): a line of JSON {"m", "n", "k"} in, the median seconds of one out.

Weights of few rows are walked over, so that they come from memory.
"""
import json
import statistics
import sys
import time

import torch

threads = int(sys.argv[1])
torch.set_num_threads(threads)
torch.set_grad_enabled(False)
print(json.dumps({"ready": f"PyTorch {torch.__version__}"}), flush=True)
for line in sys.stdin:
    shape = json.loads(line)
    m, n, k = shape["m"], shape["n"], shape["k"]
    copies = 1 if m >= 512 else max(1, (800 << 20) // (2 * n * k))
    x = torch.randn(m, k).bfloat16()
    weights = [torch.randn(n, k).bfloat16() for _ in range(copies)]
    torch.nn.functional.linear(x, weights[0])
    times, end = [], time.perf_counter() + 1.0
    while len(times) < 5 or time.perf_counter() < end:
        weight, begin = weights[len(times) % copies], time.perf_counter()
        torch.nn.functional.linear(x, weight)
        times.append(time.perf_counter() - begin)
    print(json.dumps({"seconds": statistics.median(times)}), flush=True)
