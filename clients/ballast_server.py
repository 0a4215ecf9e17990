"""A server of a tiny model for the scripts of this folder: started, known by its address, and ended."""
import contextlib
import json
import os
import pathlib
import re
import shutil
import subprocess
import tempfile
import threading

ROOT = pathlib.Path(__file__).resolve().parent.parent
GOLDEN = ROOT / "crates/model/tests/golden/llama"
# Large enough that one sees its tokens come, and a context that does not end in the middle of a sentence.
SIZES = {"hidden_size": 256, "intermediate_size": 512, "num_hidden_layers": 6, "max_position_embeddings": 8192}


def binary():
    """The `ballast` to test: $BALLAST, or the release build."""
    return os.environ.get("BALLAST") or str(ROOT / "target/release/ballast")


def make_model(folder):
    """Configuration and tokenizer of a small Llama with a chat template; its weights are drawn when it is loaded."""
    for name in ("tokenizer.json", "tokenizer_config.json", "generation_config.json"):
        shutil.copy(GOLDEN / name, folder)
    config = json.loads((GOLDEN / "config.json").read_text()) | SIZES
    (pathlib.Path(folder) / "config.json").write_text(json.dumps(config))


@contextlib.contextmanager
def serving(*flags, model=None):
    """`ballast serve` on a free port, with `flags`: yields its address (http://...) and its process."""
    with tempfile.TemporaryDirectory() as folder:
        if model is None:
            make_model(folder)
            model, flags = folder, ("--load-format", "dummy", "--served-model-name", "tiny", *flags)
        command = [binary(), "serve", str(model), "--port", "0", *flags]
        process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
        try:
            said = []
            for line in process.stderr:
                said.append(line)
                found = re.search(r"listening on (http://\S+)", line)
                if found:
                    address = found.group(1)
                if line.startswith("ready"):
                    break
            else:
                raise RuntimeError(f"{' '.join(command)} ended: {''.join(said)}")
            # Its log goes on: a line a request.
            threading.Thread(target=process.stderr.read, daemon=True).start()
            yield address, process
        finally:
            process.terminate()
            process.wait(60)
