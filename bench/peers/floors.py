"""The least time that this machine can take for a workload of a bf16 model: bytes over its read rate, operations over its products'."""
import json
import pathlib

BYTES = 2               # of a bf16 number, a weight's or one of KV
SHARE_OF_READS = 0.88   # of the bandwidth: what a decode bar asks at the most


class Floors:
    """Of a folder with a config.json; other models have none."""

    def __init__(self, model):
        try:
            c = json.loads((pathlib.Path(model) / "config.json").read_text())
        except OSError:
            self.known = False
            return
        hidden, heads = c["hidden_size"], c["num_attention_heads"]
        kv_heads, head_dim = c.get("num_key_value_heads", heads), c.get("head_dim") or hidden // heads
        inner, gated = (c["ffn_dim"], 2) if "ffn_dim" in c else (c["intermediate_size"], 3)
        layer = hidden * (2 * head_dim * (heads + kv_heads) + gated * inner)
        self.known = True
        self.layers = c["num_hidden_layers"] * layer
        self.head = hidden * c["vocab_size"]
        self.kv = c["num_hidden_layers"] * 2 * kv_heads * head_dim * BYTES
        self.pair = c["num_hidden_layers"] * 4 * heads * head_dim     # operations of a query and a key

    def tokens_per_s(self, workload, rates):
        """What the floor allows, in the workload's own unit; None where nothing is known. rates: "read_bytes_per_s", "flops"."""
        if not self.known or not rates.get("flops"):
            return None
        batch, prompt, out = workload.batch, workload.input_len, workload.output_len
        prompts = batch * (2 * prompt * self.layers + prompt * prompt / 2 * self.pair) + 2 * batch * self.head
        first = max(prompts / rates["flops"], (self.layers + self.head) * BYTES / rates["read_bytes_per_s"])
        steps = sum(self._step(batch, prompt + i, rates) for i in range(1, out))
        if workload.kind == "decode":
            return batch * (out - 1) / steps
        return batch * (prompt if workload.kind == "prefill" else out) / (first + steps)

    def decodes_per_s(self, workload, rates):
        """What the bandwidth alone allows of a decode, tokens/s; None of anything else. A decode bar asks for a share of it."""
        if not self.known or not rates.get("read_bytes_per_s") or workload.kind != "decode":
            return None
        steps = sum(self._reads(workload.batch, workload.input_len + i) for i in range(1, workload.output_len))
        return workload.batch * (workload.output_len - 1) * rates["read_bytes_per_s"] / steps

    def _reads(self, batch, context):
        """Bytes of a decode of `batch` sequences with so much context."""
        return (self.layers + self.head) * BYTES + batch * context * self.kv

    def _step(self, batch, context, rates):
        """Seconds of it."""
        operations = batch * (2 * (self.layers + self.head) + context * self.pair)
        return max(self._reads(batch, context) / rates["read_bytes_per_s"], operations / rates["flops"])


def bar(peer, model, workload):
    """The ratio that we ask of ourselves; None where none is set."""
    one = workload.name == "decode-b1"
    if peer == "vllm":
        return 1.25 if one else 1.4
    if peer == "llamacpp" and pathlib.Path(model).suffix == ".gguf":
        return {"decode-b1": 1.0, "decode-b8": 2.0, "decode-b32": 2.0}.get(workload.name)
    if peer == "llamacpp":
        return 1.25 if one else 1.15
    return None
