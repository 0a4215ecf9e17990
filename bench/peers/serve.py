"""A peer engine as a child process.

Reads one workload (JSON) per line and answers with one line {"tokens_per_s": .., "peak_rss_bytes": ..} or {"error": ..}.
The first line it writes, once the model is loaded and warm, is {"ready": engine and version}. Whatever the engine prints
goes to stderr.
"""
import json
import os
import resource
import sys
import time

from workloads import Prompts, Workload


def claim_stdout():
    """The real stdout as a file; from here on, prints of this process and its children go to stderr."""
    out = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    return out


def measured_by(generate, vocab_size):
    """Workload -> tokens/s, from generate(prompts, n_out), which returns when all have exactly n_out tokens."""
    prompts = Prompts(vocab_size)

    def seconds(workload, n_out):
        batch = prompts.draw(workload.batch, workload.input_len)
        began = time.perf_counter()
        generate(batch, n_out)
        return time.perf_counter() - began

    def measure(workload):
        first = seconds(workload, 1) if workload.kind == "decode" else 0.0
        return workload.speed(seconds(workload, workload.output_len), first)

    for n, length in ((1, 64), (4, 128)):
        generate(prompts.draw(n, length), 4)
    return measure


def serve(load):
    """load() -> (engine and version, Workload -> tokens/s); then answers until stdin ends."""
    out = claim_stdout()
    engine, measure = load()
    print(json.dumps({"ready": engine}), file=out)
    for line in sys.stdin:
        try:
            answer = {"tokens_per_s": measure(Workload(**json.loads(line))), "peak_rss_bytes": peak_rss()}
        except Exception as error:     # the driver reports it and goes on with the next workload
            answer = {"error": f"{type(error).__name__}: {error}"}
        print(json.dumps(answer), file=out)


def peak_rss():
    kinds = (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)
    return max(resource.getrusage(k).ru_maxrss for k in kinds) * 1024
