#!/usr/bin/env python3
"""Writes the tokenizer fixtures of crates/model: small tokenizers and what Hugging Face makes of odd strings.

    pip install tokenizers gguf
    python scripts/tokenizer_fixtures.py [SmolLM2-135M-Instruct.*.gguf]

Without a GGUF file only the small tokenizers are written. Nothing is downloaded.
The training text is this file and the strings below, so that the result does not depend on anything else.
"""
import json
import pathlib
import sys

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

ROOT = pathlib.Path(__file__).resolve().parent.parent
OUT = ROOT / "crates/model/tests/fixtures/tokenizer"

STRINGS = [
    "", " ", "  ", "   ", "\n", "\n\n", "\r\n", "\t", " \n ", "a", "ab", "Hello, world!", " leading", "trailing ",
    "two  spaces", "three   spaces   between", "line one\nline two\n\n\nline five", "\ttab\tseparated\tvalues",
    "it's we're I'll they've I'd don't", "IT'S WE'RE I'LL", "l'été", "rock'n'roll ''quoted''",
    "0", "12", "123", "1234", "12345678901234567890", "3.14159", "1,000,000.00", "0x7fff", "x1y22z333",
    "naïve café résumé", "Straße GROẞ", "привет, мир", "你好，世界", "こんにちは世界", "안녕하세요", "مرحبا بالعالم",
    "नमस्ते", "e\u0301 combining", "\u00e9 composed", "ﬁ ligature", "Å\u212b", "👍", "👩‍👩‍👧‍👦 family", "🏳️‍🌈🇩🇪",
    "zero\u200bwidth\u200djoin", "\u00a0nbsp\u00a0", "\u3000ideographic", "\ufeffbom", "\u202ertl", "nul\x00byte", "\x7f\x80\x9f",
    "def f(x):\n    return x ** 2  # square\n", "<html><body class=\"a\">&amp;</body></html>", "{\"k\": [1, 2.5, null]}",
    "https://example.org/a?b=c&d=%20#e", "snake_case camelCase PascalCase kebab-case", "!!!???...---===",
    "$100 + €50 = ¥?", "∑∫√≠≤∞", "𝔘𝔫𝔦𝔠𝔬𝔡𝔢", "\U0010ffff", "<|im_start|>user\nhi<|im_end|>\n", "<s>text</s>", "<|im_start", "|>",
    "a" * 300, " " * 100, "ab" * 120, "\n" * 50, "🙂" * 20, "The quick brown fox jumps over the lazy dog.",
]

LLAMA3 = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
QWEN2 = LLAMA3.replace(r"\p{N}{1,3}", r"\p{N}")
TEKKEN = (
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+|[^\r\n\p{L}\p{N}]?"
    r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
SPECIALS = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]


def corpus():
    text = pathlib.Path(__file__).read_text()
    return [text] + STRINGS * 3


def by_pattern(regex):
    return pre_tokenizers.Sequence([
        pre_tokenizers.Split(Regex(regex), "isolated"),
        pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
    ])


PRE = {
    "gpt-2": pre_tokenizers.ByteLevel(add_prefix_space=False),
    "smollm": pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]),
    "llama-bpe": by_pattern(LLAMA3),
    "qwen2": by_pattern(QWEN2),
    "tekken": by_pattern(TEKKEN),
}


def byte_level(pre):
    tokenizer = Tokenizer(models.BPE())
    tokenizer.normalizer = normalizers.NFC() if pre == "qwen2" else None
    tokenizer.pre_tokenizer = PRE[pre]
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    trainer = trainers.BpeTrainer(vocab_size=500, special_tokens=SPECIALS, initial_alphabet=alphabet, show_progress=False)
    tokenizer.train_from_iterator(corpus(), trainer)
    if pre == "llama-bpe":
        tokenizer.model.ignore_merges = True
        bos = tokenizer.token_to_id("<|endoftext|>")
        tokenizer.post_processor = processors.TemplateProcessing(
            single="<|endoftext|> $A", pair="<|endoftext|> $A <|endoftext|> $B", special_tokens=[("<|endoftext|>", bos)])
    return tokenizer


def sentence_piece():
    """A Llama-2 shaped tokenizer: scores in the order of merges, a byte for every byte, bos in front."""
    words = Tokenizer(models.BPE())
    words.normalizer = normalizers.Replace(" ", "▁")
    words.pre_tokenizer = pre_tokenizers.Split("▁", "merged_with_next")
    words.train_from_iterator(corpus(), trainers.BpeTrainer(vocab_size=420, min_frequency=2, show_progress=False))
    pieces = sorted(words.get_vocab().items(), key=lambda kv: kv[1])
    pieces = [p for p, _ in pieces if len(p) > 1] + [p for p, _ in pieces if len(p) == 1]
    tokens = ["<unk>", "<s>", "</s>"] + [f"<0x{b:02X}>" for b in range(256)] + pieces
    scores = [0.0] * 259 + [-float(i) for i in range(len(pieces))]
    kinds = [2, 3, 3] + [6] * 256 + [1] * len(pieces)
    vocab = {t: i for i, t in enumerate(tokens)}
    merges = []
    for token, score in zip(tokens, scores):
        for cut in range(1, len(token)):
            if token[:cut] in vocab and token[cut:] in vocab:
                merges.append((token[:cut], token[cut:], score))
    merges.sort(key=lambda m: (m[2], len(m[0]), len(m[1])), reverse=True)
    tokenizer = Tokenizer(models.BPE(vocab, [m[:2] for m in merges], unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    tokenizer.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)])
    tokenizer.add_special_tokens([AddedToken(t, normalized=False, special=True) for t in ["<unk>", "<s>", "</s>"]])
    tokenizer.post_processor = processors.TemplateProcessing(single="<s> $A", pair="<s> $A <s> $B", special_tokens=[("<s>", 1)])
    gguf = {"model": "llama", "tokens": tokens, "scores": scores, "kinds": kinds, "bos": 1, "eos": 2, "unk": 0}
    return tokenizer, gguf


def as_gguf(tokenizer, pre):
    data = json.loads(tokenizer.to_str())
    vocab = sorted(data["model"]["vocab"].items(), key=lambda kv: kv[1])
    merges = [m if isinstance(m, str) else " ".join(m) for m in data["model"]["merges"]]
    kinds = [3 if t in SPECIALS else 1 for t, _ in vocab]
    return {
        "model": "gpt2", "pre": pre, "tokens": [t for t, _ in vocab], "kinds": kinds, "merges": merges,
        "bos": 0, "eos": 2, "add_bos": pre == "llama-bpe",
    }


def cases(tokenizer):
    rows = []
    for text in STRINGS:
        ids = tokenizer.encode(text, add_special_tokens=False).ids
        special = tokenizer.encode(text, add_special_tokens=True).ids
        rows.append({
            "text": text, "ids": ids, "with_special": special,
            "decoded": tokenizer.decode(special, skip_special_tokens=False),
            "skipped": tokenizer.decode(special, skip_special_tokens=True),
        })
    return rows


def write(name, data):
    OUT.mkdir(parents=True, exist_ok=True)
    (OUT / name).write_text(json.dumps(data, ensure_ascii=False, separators=(",", ":")) + "\n")


def smollm2(path):
    """The published SmolLM2 tokenizer, from the vocabulary in a GGUF file (49k tokens are not committed)."""
    import gguf

    fields = gguf.GGUFReader(path).fields
    get = lambda key: fields[f"tokenizer.ggml.{key}"].contents()
    vocab = {t: i for i, t in enumerate(get("tokens"))}
    merges = [tuple(m.split(" ")) for m in get("merges")]
    tokenizer = Tokenizer(models.BPE(vocab, merges))
    tokenizer.pre_tokenizer = PRE["smollm"]
    tokenizer.decoder = decoders.ByteLevel()
    control = [t for t, k in zip(get("tokens"), get("token_type")) if k == 3]
    tokenizer.add_special_tokens([AddedToken(t, normalized=False, special=True) for t in control])
    return tokenizer


def main():
    for pre in PRE:
        tokenizer = byte_level(pre)
        hf = json.loads(tokenizer.to_str())
        write(f"{pre}.json", {"hf": hf, "gguf": as_gguf(tokenizer, pre), "cases": cases(tokenizer)})
    tokenizer, gguf = sentence_piece()
    write("llama.json", {"hf": json.loads(tokenizer.to_str()), "gguf": gguf, "cases": cases(tokenizer)})
    if len(sys.argv) > 1:
        write("smollm2_cases.json", {"cases": cases(smollm2(sys.argv[1]))})


if __name__ == "__main__":
    main()
