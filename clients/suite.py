"""Tests of a client: the methods of a class that begin with test_, all of them run whatever becomes of the others."""
import argparse
import sys


def run(suite, client):
    """How many fail. `client`: the package that is tried."""
    tests = [name for name in dir(suite) if name.startswith("test_")]
    failed = 0
    for name in tests:
        try:
            getattr(suite, name)()
            print(f"ok      {name}")
        except Exception as error:
            failed += 1
            print(f"FAILED  {name}: {type(error).__name__}: {error}")
    print(f"{client.__name__} {client.__version__}: {len(tests) - failed} of {len(tests)} passed")
    return failed


def main(make, client):
    """Ends the program. `make`: a suite, of a server's address and key."""
    parser = argparse.ArgumentParser()
    parser.add_argument("url")
    parser.add_argument("--key", default="none")
    args = parser.parse_args()
    sys.exit(1 if run(make(args.url, args.key), client) else 0)
