#!/usr/bin/env python3
"""Writes crates/kernels/tests/fixtures/gguf/<format>.blocks and .values: random blocks of each GGUF
format, and the f32 values that the Python package `gguf` makes of them; of IQ4_NL, which is read as
another format, below crates/model. And the same of Ballast's own blocks of 64 floats of 8 bits behind
a scale, as OCP's E4M3 defines them. Run: pip install gguf numpy ml_dtypes."""

import pathlib

import gguf
import ml_dtypes
import numpy as np

ROWS, K, SEED = 2, 512, 20
HERE = pathlib.Path(__file__).resolve().parent.parent
# Where the f16 words of a block are: the only bytes that must not be random (they could be NaN).
HALVES = {
    "Q4_0": [0], "Q4_1": [0, 2], "Q5_0": [0], "Q5_1": [0, 2], "Q8_0": [0],
    "Q2_K": [80, 82], "Q3_K": [108], "Q4_K": [0, 2], "Q5_K": [0, 2], "Q6_K": [208],
    "IQ4_NL": [0],
}


def main() -> None:
    rng = np.random.default_rng(SEED)
    for name, halves in HALVES.items():
        kind = gguf.GGMLQuantizationType[name]
        block, size = gguf.GGML_QUANT_SIZES[kind]
        blocks = rng.integers(0, 256, (ROWS * K // block, size), dtype=np.uint8)
        for at in halves:
            scales = (rng.standard_normal(len(blocks)) * 0.02).astype(np.float16)
            scales[0] = np.float16(3e-7)  # subnormal
            blocks[:, at : at + 2] = scales.view(np.uint8).reshape(-1, 2)
        values = gguf.quants.dequantize(blocks.reshape(ROWS, -1), kind).astype("<f4")
        assert values.shape == (ROWS, K), values.shape
        write("model" if name == "IQ4_NL" else "kernels", name, blocks, values)
    codes = rng.integers(0, 256, (ROWS * K // 64, 64), dtype=np.uint8)
    codes[(codes & 0x7f) == 0x7f] = 1  # what is no number
    scales = (rng.standard_normal(len(codes)) * 0.02).astype("<f4")[:, None]
    values = codes.view(ml_dtypes.float8_e4m3fn).astype("<f4") * scales
    write("kernels", "fp8", np.hstack([scales.view(np.uint8), codes]), values.reshape(ROWS, K))


def write(crate: str, name: str, blocks: np.ndarray, values: np.ndarray) -> None:
    out = HERE / "crates" / crate / "tests" / "fixtures" / "gguf"
    out.mkdir(parents=True, exist_ok=True)
    (out / f"{name.lower()}.blocks").write_bytes(blocks.tobytes())
    (out / f"{name.lower()}.values").write_bytes(values.tobytes())


if __name__ == "__main__":
    main()
