"""Both sides of a comparison, as the driver sees them: something that turns a workload into tokens/s."""
import json
import os
import pathlib
import signal
import subprocess
import tempfile

HERE = pathlib.Path(__file__).resolve().parent
PEERS = ("vllm", "llamacpp", "hf")


class Failed(Exception):
    """An engine could not run a workload; the message is for the user."""


class Peer:
    """A peer that stays loaded in a child process, stopped (SIGSTOP) whenever it is not being timed."""

    def __init__(self, name, model, peers_dir, threads, log, llamacpp_build="build"):
        python = installed = peers_dir / name / "bin" / "python"
        extra = []
        if name == "llamacpp":
            bin_dir = peers_dir / "llamacpp" / llamacpp_build / "bin"
            python, extra, installed = pathlib.Path("python3"), [str(bin_dir)], bin_dir / "llama-batched-bench"
        if not installed.exists():
            raise Failed(f"{name} is not installed ({installed} is missing): run bench/setup-peers.sh {peers_dir} {name}")
        command = [str(python), str(HERE / f"serve_{name}.py"), str(model), str(threads), *extra]
        env = dict(os.environ, OMP_NUM_THREADS=str(threads), TOKENIZERS_PARALLELISM="false")
        self.log = log
        with open(log, "w") as stderr:
            self.child = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=stderr, text=True,
                                          env=env, start_new_session=True)
        try:
            self.version = self._answer()["ready"]
        except BaseException:
            self.close()
            raise
        self._signal(signal.SIGSTOP)

    def measure(self, workload):
        """{"tokens_per_s", "peak_rss_bytes"}"""
        self._signal(signal.SIGCONT)
        print(json.dumps(workload.as_json()), file=self.child.stdin, flush=True)
        answer = self._answer()
        self._signal(signal.SIGSTOP)
        return answer

    def close(self):
        """Ends the peer, whatever it is doing."""
        if self.child.poll() is None:
            self._signal(signal.SIGKILL)
            self.child.wait()

    def _answer(self):
        line = self.child.stdout.readline()
        answer = json.loads(line) if line else {"error": "the process ended"}
        if "error" in answer:
            tail = pathlib.Path(self.log).read_text(errors="replace")[-1500:]
            raise Failed(f"peer: {answer['error']}\n{tail}\n(its whole output: {self.log})")
        return answer

    def _signal(self, number):
        os.killpg(self.child.pid, number)


class Ballast:
    """The `ballast bench` commands, a process for each repetition."""

    KEYS = {"prefill": "prefill_tokens_per_s", "decode": "decode_tokens_per_s", "offline": "generated_tokens_per_s"}

    def __init__(self, binary, model, threads, arguments):
        if not pathlib.Path(binary).exists():
            raise Failed(f"no binary at {binary}: run cargo build --release, or name it with --ballast FILE")
        self.binary, self.model = str(binary), str(model)
        self.arguments = ["--reps", "1", "--threads", str(threads), *arguments]
        self.version = subprocess.run([self.binary, "--version"], capture_output=True, text=True).stdout.strip()

    def rates(self):
        """What this machine can do at this minute: {"read_bytes_per_s", "flops"}."""
        with tempfile.TemporaryDirectory() as folder:
            out = pathlib.Path(folder) / "rates.json"
            command = [self.binary, "bench", "kernels", "--only", "linear/bf16/store(f32)/1x960x576", "--json", str(out)]
            done = subprocess.run(command, capture_output=True, text=True)
            if done.returncode:
                raise Failed(f"{' '.join(command)}\nexited {done.returncode}: {done.stderr[-1500:]}")
            return json.loads(out.read_text())["cases"][0]["ceilings"]

    def measure(self, workload):
        """{"tokens_per_s", "peak_rss_bytes"}; the latter is null where the command does not say."""
        with tempfile.TemporaryDirectory() as folder:
            out = pathlib.Path(folder) / "figures.json"
            command = self._command(workload) + self.arguments + ["--json", str(out)]
            done = subprocess.run(command, capture_output=True, text=True)
            if done.returncode or not out.exists():
                raise Failed(f"{' '.join(command)}\nexited {done.returncode}: {done.stderr[-1500:]}")
            figures = json.loads(out.read_text())
        key = self.KEYS[workload.kind]
        if key not in figures:
            raise Failed(f"{' '.join(command)}\nwrote no {key}; it wrote {', '.join(figures)}")
        return {"tokens_per_s": figures[key], "peak_rss_bytes": figures.get("peak_rss_bytes"), "figures": figures}

    def _command(self, workload):
        lengths = ["--input-len", str(workload.input_len), "--output-len", str(workload.output_len)]
        if workload.kind == "decode":
            return [self.binary, "bench", "latency", self.model, "--batch", str(workload.batch), *lengths]
        return [self.binary, "bench", "throughput", self.model, "--num-prompts", str(workload.batch), *lengths]
