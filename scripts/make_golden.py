#!/usr/bin/env python3
"""Makes the golden checkpoints: tiny random models with the logits that Hugging Face transformers computes on them.

    pip install torch==2.13.0 transformers==5.16.1 gguf safetensors     (or: bench/setup-peers.sh DIR hf)
    pip install compressed-tensors==0.20.1 bitsandbytes==0.50.2
    python scripts/make_golden.py [NAME ...]

writes crates/model/tests/golden/NAME/ for every variant (or for those named); README.md there describes the files.
Everything is seeded: another run on the same versions gives the same bytes.
"""
import pathlib
import sys
import tempfile

from golden import gguf_twins, quantized, reference, tokenizer, variants, weights

OUT = pathlib.Path(__file__).resolve().parent.parent / "crates" / "model" / "tests" / "golden"


def make_checkpoint(variant):
    out = OUT / variant.name
    weights.write(variant, out)
    if variant.tokenizer:
        tokenizer.write(out, variant.tokenizer)
    reference.write(variant, out, reference.hf_loader(out))


def make_twin(twin):
    out = OUT / twin.name
    gguf_twins.write(twin, out)
    if not twin.exact:
        return reference.write(twin, out, reference.gguf_loader(out))
    with tempfile.TemporaryDirectory() as folder:
        same = pathlib.Path(folder)
        weights.write(variants.Variant(twin.name, twin.config, seed=twin.seed), same)
        reference.write(twin, out, reference.hf_loader(same), checkpoint=same)


def make_quantized(variant):
    out = OUT / variant.name
    with tempfile.TemporaryDirectory() as folder:
        same = pathlib.Path(folder)
        quantized.write(variant, out, same)
        reference.write(variant, out, reference.hf_loader(same), checkpoint=same)


def main(names):
    table = {v.name: (make_checkpoint, v) for v in variants.CHECKPOINTS}
    table |= {t.name: (make_twin, t) for t in gguf_twins.TWINS}
    table |= {q.name: (make_quantized, q) for q in quantized.QUANTIZED}
    unknown = [n for n in names if n not in table]
    if unknown:
        sys.exit(f"no variant {', '.join(unknown)}; there are: {', '.join(table)}")
    for name in names or table:
        make, what = table[name]
        print(f"{name:24}", end=" ", flush=True)
        make(what)


if __name__ == "__main__":
    main(sys.argv[1:])
