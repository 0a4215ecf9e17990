#!/usr/bin/env python3
"""Compares published chat templates, rendered by Ballast, with Python's Jinja2 set up as transformers does.

    python clients/templates.py RENDERER [FOLDER]

RENDERER is the program of `cargo build -p model --example render_template`. The templates are those that llama.cpp
publishes with its sources; they are taken from a pinned source package and not kept here, since their licences
differ. FOLDER, where given, has them already. A difference ends this with exit code 1.
"""
import json
import pathlib
import subprocess
import sys
import tarfile
import tempfile

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "scripts"))
import jinja2  # noqa: E402
import template_fixtures as ours  # noqa: E402

PACKAGE = "llama-cpp-python==0.3.36"
# Fewer templates than this are a package that has changed its folders.
AT_LEAST = 60
# Where Ballast differs on purpose, and why.
KNOWN = {
    "meetkai-functionary-medium-v3.1": "Jinja2 escapes what is added to a `safe` string; the tools reach the model as HTML",
}


def fetch(folder):
    """The published templates, in `folder`."""
    # Only this package as source: what pip builds its metadata with may come as wheels.
    source = ["--no-deps", "--no-binary", PACKAGE.split("==")[0]]
    command = [sys.executable, "-m", "pip", "download", "-q", *source, "-d", folder, PACKAGE]
    if subprocess.run(command).returncode:
        print(f"{PACKAGE} cannot be downloaded", file=sys.stderr)
        sys.exit(77)
    archive, = pathlib.Path(folder).glob("*.tar.gz")
    with tarfile.open(archive) as tar:
        for member in tar:
            if "/models/templates/" in member.name and member.name.endswith(".jinja"):
                name = pathlib.PurePosixPath(member.name).name
                (pathlib.Path(folder) / name).write_bytes(tar.extractfile(member).read())
    return pathlib.Path(folder)


def expected(template, conversation):
    """What Jinja2 makes of it. A null content of a tool call that it would print as `None` is an empty text for Ballast."""
    plain = jinja(template, conversation)
    messages = [{**m, "content": ""} if m.get("content", "") is None else m for m in conversation["messages"]]
    if messages == conversation["messages"] or "text" not in plain:
        return plain
    empty = jinja(template, {**conversation, "messages": messages})
    prints_null = plain["text"].count("None") > empty.get("text", "").count("None")
    return empty if prints_null and "text" in empty else plain


def jinja(template, conversation):
    """What Jinja2 makes of it: text, or refused, or failed."""
    context = {"tools": None, "documents": None, "add_generation_prompt": True, **conversation, **ours.SPECIAL}
    try:
        return {"text": template.render(**context)}
    except Exception as error:  # templates fail in every way that Python knows
        if type(error) is jinja2.exceptions.TemplateError:
            return {"refused": str(error)}
        return {"failed": f"{type(error).__name__}: {error}"}


def cases(folder):
    environment = ours.environment()
    for path in sorted(folder.glob("*.jinja")):
        source = path.read_text()
        template = environment.from_string(source)
        for name, conversation in ours.CONVERSATIONS.items():
            # Parts are given to a template in the form that it prints: there is nothing to compare with.
            if name != "parts":
                yield path.stem, source, name, conversation, expected(template, conversation)


def render(program, rows):
    """What Ballast makes of them."""
    lines = [json.dumps({"template": source, "conversation": conversation, "special": ours.SPECIAL, "now": ours.NOW})
             for _, source, _, conversation, _ in rows]
    done = subprocess.run([program], input="\n".join(lines), capture_output=True, text=True, check=True)
    return [json.loads(line) for line in done.stdout.splitlines()]


def agree(want, got):
    # Where Python trips over a conversation (most often over `none` in a loop), minijinja may print nothing there.
    return "failed" in want or want == got


def main():
    program = sys.argv[1]
    with tempfile.TemporaryDirectory() as scratch:
        folder = pathlib.Path(sys.argv[2]) if len(sys.argv) > 2 else fetch(scratch)
        rows = list(cases(folder))
    wrong, texts, lenient = {}, 0, 0
    for row, got in zip(rows, render(program, rows), strict=True):
        texts += "text" in row[4]
        lenient += "failed" in row[4] and "text" in got
        if not agree(row[4], got):
            wrong.setdefault(row[0], []).append((row[2], row[4], got))
    for name, differences in wrong.items():
        if name in KNOWN:
            print(f"{name}: {len(differences)} conversations differ, as known: {KNOWN[name]}")
            continue
        case, want, got = differences[0]
        print(f"{name}: {len(differences)} conversations differ, the first is {case}\n  jinja2  {want}\n  ballast {got}")
    names = {row[0] for row in rows}
    print(f"{len(names) - len(wrong)} of {len(names)} published templates render as in Jinja2: {len(rows)} conversations, "
          f"{texts} with text, byte for byte ({lenient} more are rendered where Jinja2 fails)")
    return 0 if wrong.keys() <= KNOWN.keys() and len(names) >= AT_LEAST else 1


if __name__ == "__main__":
    sys.exit(main())
