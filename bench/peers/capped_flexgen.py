"""FlexGen (PyPI 0.1.8) on a machine without CUDA: one batch, all weights on the drive.

    capped_flexgen.py MODEL OFFLOAD_DIR BATCH PROMPT GENERATED    such as facebook/opt-6.7b; its weights are dummies

FlexGen names cuda:0, CUDA streams and pinned buffers itself and does not run here as it is. What is replaced: its "GPU" is the
processor, streams and synchronisation do nothing, nothing is pinned. Schedule, stores, copy threads and arithmetic (fp16) are its own.
It prints a line of JSON: seconds of prompts and of decoding, generated tokens/s.
"""
import argparse
import contextlib
import json
import os
import pathlib
import re
import sys
import time

import torch


class NoStream:
    def __init__(self, *_, **__):
        pass

    def synchronize(self):
        pass


def without_cuda():
    # A function of its own for each: PyTorch's compiler keeps a table of them.
    torch.cuda.Stream, torch.cuda.stream = NoStream, lambda _: contextlib.nullcontext()
    torch.cuda.synchronize = lambda *_: None
    torch.cuda.set_device = lambda *_: None
    torch.Tensor.cuda = lambda tensor, *_, **__: tensor
    torch.Tensor.pin_memory = lambda tensor, *_, **__: tensor
    empty = torch.empty
    torch.empty = lambda *shape, pin_memory=False, **more: empty(*shape, **more)
    from flexgen import pytorch_backend as backend
    init = backend.TorchDevice.__init__
    backend.TorchDevice.__init__ = lambda device, name, *a, **more: init(
        device, "cpu" if str(name).startswith("cuda") else name, *a, **more)


class Tokens:
    """In place of a tokenizer, which the hub would have to be asked for: prompts of the asked length."""
    pad_token_id = 1

    def __call__(self, prompts, padding=None, max_length=8):
        ids = [[1] * (max_length - 7) + [2, 11, 12, 13, 14, 15, 16] for _ in prompts]
        return argparse.Namespace(input_ids=ids)

    def batch_decode(self, rows, **_):
        return [str(list(row)[-8:]) for row in rows]

    @classmethod
    def from_pretrained(cls, *_, **__):
        return cls()


def main():
    model, folder, batch, prompt, generated = sys.argv[1:]
    without_cuda()
    from flexgen import flex_opt
    flex_opt.AutoTokenizer = Tokens
    torch.set_num_threads(len(os.sched_getaffinity(0)))
    parser = argparse.ArgumentParser()
    flex_opt.add_parser_arguments(parser)
    args = parser.parse_args(["--model", model, "--path", "_DUMMY_", "--offload-dir", folder, "--percent", "0", "0", "100", "0", "100", "0",
                              "--gpu-batch-size", batch, "--num-gpu-batches", "1", "--prompt-len", prompt, "--gen-len", generated])
    args.pin_weight, args.no_log, args.log_file = False, False, str(pathlib.Path(folder) / "flexgen.log")
    begin = time.monotonic()
    with torch.no_grad():
        flex_opt.run_flexgen(args)
    log = pathlib.Path(args.log_file).read_text()
    figure = lambda name: float(re.search(rf"{name}[^:]*: ([\d.]+)", log).group(1))
    print(json.dumps({"prefill_s": figure("prefill latency"), "decode_s": figure("decode latency"),
                      "generated_tokens_per_s": figure("total throughput"), "seconds": time.monotonic() - begin}))


main()
