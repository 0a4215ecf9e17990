#!/usr/bin/env python3
"""guidellm against a running server: both endpoints, every kind of load that it makes, no request lost.

    python clients/guidellm_test.py URL TOKENIZER_FOLDER [--key KEY] [--model NAME]
"""
import argparse
import json
import os
import pathlib
import subprocess
import sys
import tempfile

PROFILES = ("kind=synchronous", "kind=concurrent,streams=16", "kind=poisson,rate=40", "kind=throughput,max_concurrency=64", "kind=sweep,sweep_size=4")
REQUESTS = 60


def benchmarks(args, endpoint, profile):
    """What guidellm reports of one run: a list of benchmarks."""
    with tempfile.TemporaryDirectory() as folder:
        report = pathlib.Path(folder) / "report.json"
        command = [
            pathlib.Path(sys.executable).parent / "guidellm", "run", "--disable-console",
            "--backend", f"kind=openai_http,target={args.url},api_key={args.key},model={args.model},request_format={endpoint}",
            "--profile", profile,
            "--constraint", f"kind=max_requests,count={REQUESTS}", "--constraint", "kind=max_duration,seconds=60",
            "--tokenizer", f"kind=huggingface_auto,model={args.tokenizer}",
            "--data", "kind=synthetic_text,prompt_tokens=64,output_tokens=24",
            "--output", f"kind=json,path={report}"]
        done = subprocess.run(command, env=os.environ | {"HF_HUB_OFFLINE": "1"}, capture_output=True, text=True)
        if done.returncode or not report.exists():
            raise SystemExit(f"guidellm ended with {done.returncode}: {done.stderr[-2000:]}")
        return json.loads(report.read_text())["benchmarks"]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("url")
    parser.add_argument("tokenizer")
    parser.add_argument("--key", default="none")
    parser.add_argument("--model", default="tiny")
    args = parser.parse_args()
    failed = 0
    for endpoint in ("/v1/completions", "/v1/chat/completions"):
        for profile in PROFILES:
            for run in benchmarks(args, endpoint, profile):
                totals = run["metrics"]["request_totals"]
                ok = totals["errored"] == 0 and totals["successful"] >= REQUESTS
                failed += not ok
                print(f"{'ok    ' if ok else 'FAILED'} {endpoint} {profile}: {totals}", flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
