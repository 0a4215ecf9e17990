#!/usr/bin/env python3
"""schemathesis against a running server: requests drawn from /openapi.json and from beside it, in all of its phases.

    python clients/schemathesis_test.py URL [--key KEY] [--requests N] [--seed S]

Fails on a 5xx, on an answer that is not what the document says, on a good request that is refused or a bad one that
is taken; and if a plain request is not answered afterwards.
"""
import argparse
import json
import pathlib
import subprocess
import sys
import tempfile
import urllib.request

# What no schema can say: whether a text is a grammar or a regular expression, whether limits go together, whether a
# conversation suits the template or is longer than the context. Good requests may be answered with 400 for these.
# A field of a form is bytes, so that there is no bad one of `file`: null arrives as four letters.
CONFIG = """
[checks]
positive_data_acceptance.expected-statuses = ["2xx", "400", "404"]

[[operations]]
include-name = "POST /v1/files"
checks.negative_data_rejection.enabled = false
"""
# Cases of one operation in the fuzzing phase; the other phases draw their own number.
EXAMPLES = 300


def fuzz(args, folder):
    """The report of one run. Answers may take minutes: a request without a limit goes on to the end of the context."""
    report = folder / "report.json"
    (folder / "schemathesis.toml").write_text(CONFIG)
    command = [
        pathlib.Path(sys.executable).parent / "schemathesis", "--config-file", folder / "schemathesis.toml", "run",
        f"{args.url}/openapi.json", "--header", f"Authorization: Bearer {args.key}",
        "--phases", "examples,coverage,fuzzing,stateful", "--max-examples", str(EXAMPLES), "--seed", str(args.seed),
        "--continue-on-failure", "--no-shrink", "--suppress-health-check", "all",
        "--request-timeout", "300", "--max-response-time", "300", "--report", "json", "--report-json-path", report]
    subprocess.run(command, cwd=folder)
    return json.loads(report.read_text())


def answers(args):
    """Whether a plain request is answered."""
    body = json.dumps({"prompt": "The ship", "max_tokens": 4}).encode()
    headers = {"Authorization": f"Bearer {args.key}", "Content-Type": "application/json"}
    request = urllib.request.Request(f"{args.url}/v1/completions", body, headers)
    with urllib.request.urlopen(request, timeout=60) as answer:
        return bool(json.load(answer)["choices"])


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("url")
    parser.add_argument("--key", default="none")
    parser.add_argument("--requests", type=int, default=5000, help="how many there must be at least")
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        report = fuzz(args, pathlib.Path(folder))
    cases = report["test_cases"]["generated"]
    phases = {name: phase["status"] for name, phase in report["phases"].items()}
    print(f"{cases} requests, phases {phases}, {report['test_cases']['unique_failures']} failures")
    ok = report["exit_code"] == 0 and cases >= args.requests and answers(args)
    return 0 if ok else 1


if __name__ == "__main__":
    sys.exit(main())
