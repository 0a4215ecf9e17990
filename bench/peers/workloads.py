"""The workloads of every engine, so that all are timed alike."""
import random
from dataclasses import asdict, dataclass


@dataclass(frozen=True)
class Workload:
    """`batch` prompts of `input_len` random tokens, run together to `output_len` tokens each.

    kind: prefill (prompt tokens/s), decode (generated tokens/s after the first) or offline (generated tokens/s of all).
    """
    name: str
    kind: str
    batch: int
    input_len: int
    output_len: int

    def speed(self, seconds, seconds_to_first=0.0):
        """tokens/s of the kind, from the wall time of the whole and, for decode, of the first token."""
        if self.kind == "prefill":
            return self.batch * self.input_len / seconds
        if self.kind == "decode":
            return self.batch * (self.output_len - 1) / (seconds - seconds_to_first)
        return self.batch * self.output_len / seconds

    def as_json(self):
        return asdict(self)


def standard(offline_requests=64, decode_lengths=(128, 65)):
    """Prefill of 512 tokens, decode (of 64 tokens after 128), and two offline mixes."""
    prefill = [Workload(f"prefill-512-b{b}", "prefill", b, 512, 1) for b in (1, 8)]
    decode = [Workload(f"decode-b{b}", "decode", b, *decode_lengths) for b in (1, 8, 32, 128)]
    offline = [Workload(f"offline-{i}-{o}", "offline", offline_requests, i, o) for i, o in ((512, 32), (128, 128))]
    return prefill + decode + offline


class Prompts:
    """Random token ids, away from the special ones at the beginning of a vocabulary."""

    def __init__(self, vocab_size, seed=1234):
        self.low, self.high = min(1000, vocab_size // 4), min(40000, vocab_size)
        self.random = random.Random(seed)

    def draw(self, n, length):
        return [[self.random.randrange(self.low, self.high) for _ in range(length)] for _ in range(n)]
