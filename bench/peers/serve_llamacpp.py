"""llama.cpp: a llama-batched-bench for every workload (it maps its file, so loading costs little and is not timed).

usage: serve_llamacpp.py FILE.gguf THREADS BIN_DIR
"""
import json
import subprocess
import sys

from serve import serve


def load():
    file, threads, bin_dir = sys.argv[1:4]

    def measure(workload):
        decoded = workload.output_len - (workload.kind == "decode")     # its first token comes with the prefill
        command = [f"{bin_dir}/llama-batched-bench", "-m", file, "-t", threads, "-b", "2048", "-ub", "512",
                   "-c", str(workload.batch * (workload.input_len + decoded)), "-npp", str(workload.input_len),
                   "-ntg", str(decoded), "-npl", str(workload.batch), "-lm", "none", "--no-kv-unified", "-fa", "on",
                   "--output-format", "jsonl"]
        done = subprocess.run(command, capture_output=True, text=True)
        row = last_row(done)
        if workload.kind == "prefill":
            return row["speed_pp"]
        return row["speed_tg"] if workload.kind == "decode" else workload.speed(row["t"])

    return f"llama.cpp ({file.rsplit('/', 1)[-1]})", measure


def last_row(done):
    rows = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    if not rows:
        raise RuntimeError(f"llama-batched-bench exited {done.returncode} without a result: {done.stderr[-400:]}")
    return rows[-1]


if __name__ == "__main__":
    serve(load)
