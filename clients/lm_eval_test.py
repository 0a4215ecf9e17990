#!/usr/bin/env python3
"""lm-eval's `local-completions` against a running server, and the same log-likelihoods from transformers.

    python clients/lm_eval_test.py URL MODEL_FOLDER

Token-id prompts, echo and logprobs, as lm-eval sends them. Ballast computes with bf16 weights and activations, as
transformers does in bf16; the two round in different places, so that what is compared is each to transformers in f32:
Ballast may be at most as far from it as bf16 rounding is.
"""
import sys

import torch
import transformers
from lm_eval.api.instance import Instance
from lm_eval.models.openai_completions import LocalCompletionsAPI

PAIRS = [
    ("The capital of France is", " Paris"),
    ("The capital of France is", " a city in Spain that nobody has seen"),
    ("Water boils at", " one hundred degrees Celsius at sea level."),
    ("def fibonacci(n):\n    if n < 2:\n        return n\n", "    return fibonacci(n - 1) + fibonacci(n - 2)\n"),
    ("Once upon a time", ", there was a little girl who lived in a house by the sea with her grandmother."),
    ("1, 2, 3, 4,", " 5, 6, 7, 8"),
    ("Übermorgen fahren wir nach", " München"),
    ("A" * 300, "A"),
]


def of_server(url, folder):
    model = LocalCompletionsAPI(
        base_url=f"{url}/v1/completions", model="smollm2", tokenizer=folder, tokenizer_backend="huggingface",
        tokenized_requests=True, batch_size=4, num_concurrent=1, max_length=2048)
    requests = [Instance("loglikelihood", {}, pair, i) for i, pair in enumerate(PAIRS)]
    answers = model.loglikelihood(requests)
    text = model.generate_until([Instance("generate_until", {}, ("The capital of France is", {"until": ["\n"], "max_gen_toks": 8, "temperature": 0}), 0)])
    assert "Paris" in text[0], text
    rolling = model.loglikelihood_rolling([Instance("loglikelihood_rolling", {}, (PAIRS[4][0] + PAIRS[4][1],), 0)])
    assert rolling[0] is not None
    return answers, model


def of_transformers(folder, dtype, encoded):
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=dtype).eval()
    out = []
    for context, continuation in encoded:
        tokens = torch.tensor([context + continuation])
        with torch.no_grad():
            logprobs = model(tokens).logits[0].float().log_softmax(-1)
        rows = range(len(context) - 1, tokens.shape[1] - 1)
        score = sum(logprobs[row, tokens[0, row + 1]].item() for row in rows)
        greedy = all(logprobs[row].argmax() == tokens[0, row + 1] for row in rows)
        out.append((score, greedy, len(continuation)))
    return out


def main():
    url, folder = sys.argv[1:]
    got, model = of_server(url, folder)
    encoded = [model._encode_pair(*pair) for pair in PAIRS]
    exact, rounded = (of_transformers(folder, dtype, encoded) for dtype in (torch.float32, torch.bfloat16))
    wrong = 0
    for pair, (ours, greedy), (f32, f32_greedy, n), (bf16, _, _) in zip(PAIRS, got, exact, rounded, strict=True):
        # What rounding does to one pair is luck: a few hundredths a token is its size on this model.
        allowed = max(2 * abs(bf16 - f32), 0.05 * n)
        bad = abs(ours - f32) > allowed or greedy != f32_greedy
        wrong += bad
        print(f"{'WRONG' if bad else 'ok   '} ballast {ours:9.4f}  f32 {f32:9.4f}  bf16 {bf16:9.4f}  greedy {greedy}  {pair[1]!r}")
    print(f"lm-eval: {len(PAIRS) - wrong} of {len(PAIRS)} log-likelihoods within bf16 rounding of transformers")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
