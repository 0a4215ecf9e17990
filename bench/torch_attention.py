"""Causal prefill attention of PyTorch in TFLOP/s, beside `cargo run --release -p kernels --example attention prefill`.

Usage: python bench/torch_attention.py [threads]
"""

import sys
import time

import torch
from torch.nn.functional import scaled_dot_product_attention

threads = int(sys.argv[1]) if len(sys.argv) > 1 else 2
torch.set_num_threads(threads)
# As in the example: one thread alone is timed by its CPU time, which a busy machine disturbs less.
clock = time.thread_time if threads == 1 else time.perf_counter
for heads, kv_heads, head_dim in [(8, 8, 64), (9, 3, 64), (8, 8, 128), (8, 2, 128)]:
    for tokens in [512, 1024, 2048, 4096, 8192]:
        q = torch.randn(1, heads, tokens, head_dim, dtype=torch.bfloat16)
        k = torch.randn(1, kv_heads, tokens, head_dim, dtype=torch.bfloat16)
        v = torch.randn_like(k)
        times = []
        for _ in range(7):
            start = clock()
            scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=kv_heads != heads)
            times.append(clock() - start)
        tflops = 2 * tokens**2 * heads * head_dim / min(times) / 1e12
        print(f"{heads:3}/{kv_heads:<2} x{head_dim:4} {tokens:5} {tflops:6.3f}")
