#!/usr/bin/env python3
"""Renders chat templates with Python's Jinja2, as transformers sets it up, for crates/model to compare with.

    pip install jinja2
    python scripts/template_fixtures.py

Templates (crates/model/tests/fixtures/templates/*.jinja) are written for this repository: each behaves as
the published template of the family it is named after. Results go to cases.json beside them.
"""
import datetime
import json
import pathlib

import jinja2
import jinja2.ext
import jinja2.nodes
import jinja2.sandbox

DIR = pathlib.Path(__file__).resolve().parent.parent / "crates/model/tests/fixtures/templates"
NOW = 1735689599  # 2024-12-31 23:59:59 UTC

WEATHER = {"type": "function", "function": {
    "name": "get_weather", "description": "Get the <current> weather & more: \"now\"",
    "parameters": {"type": "object", "properties": {
        "city": {"type": "string", "description": "The city's name, e.g. São Paulo"},
        "unit": {"type": "string", "enum": ["celsius", "fahrenheit"]},
        "days": {"type": "integer", "default": 1, "minimum": 0.5}}, "required": ["city"]}}}
CALL = {"role": "assistant", "content": None, "tool_calls": [
    {"id": "call_abc1", "type": "function", "function": {"name": "get_weather", "arguments": {"city": "Paris", "days": 2}}}]}
RESULT = {"role": "tool", "tool_call_id": "call_abc1", "name": "get_weather", "content": "{\"temperature\": 21.5}"}
USER = {"role": "user", "content": "Hello, how are you?"}
ANSWER = {"role": "assistant", "content": "I'm fine.  Thanks! \n"}
THINKER = {"role": "assistant", "content": "<think>\nIt is easy.\n</think>\n\nThe answer is 4."}
AGAIN = {"role": "user", "content": "  What is 2+2? {{ not_a_tag }} <|im_end|> é👍\n\n"}
SYSTEM = {"role": "system", "content": "You are a pirate."}
PARTS = {"role": "user", "content": [{"type": "text", "text": "part one"}, {"type": "text", "text": "part two"}]}

CONVERSATIONS = {
    "user": {"messages": [USER]},
    "no_prompt": {"messages": [USER], "add_generation_prompt": False},
    "system": {"messages": [SYSTEM, USER]},
    "turns": {"messages": [USER, ANSWER, AGAIN]},
    "system_turns": {"messages": [SYSTEM, USER, ANSWER, AGAIN, ANSWER], "add_generation_prompt": False},
    "tools": {"messages": [USER], "tools": [WEATHER]},
    "tool_result": {"messages": [SYSTEM, USER, CALL, RESULT], "tools": [WEATHER]},
    "tool_done": {"messages": [USER, CALL, RESULT, ANSWER, AGAIN], "tools": [WEATHER]},
    "two_results": {"messages": [USER, CALL, RESULT, RESULT], "tools": [WEATHER]},
    "thought": {"messages": [USER, THINKER, AGAIN]},
    "no_thinking": {"messages": [USER], "enable_thinking": False},
    "two_users": {"messages": [USER, USER]},
    "parts": {"messages": [PARTS, ANSWER]},
    "assistant_first": {"messages": [ANSWER, USER]},
}
SPECIAL = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"}


class Generation(jinja2.ext.Extension):
    """Accepts {% generation %} blocks, which mark text for training."""

    tags = {"generation"}

    def parse(self, parser):
        line = next(parser.stream).lineno
        body = parser.parse_statements(["name:endgeneration"], drop_needle=True)
        return jinja2.nodes.CallBlock(self.call_method("same"), [], [], body).set_lineno(line)

    def same(self, caller):
        return caller()


def environment():
    def tojson(x, ensure_ascii=False, indent=None, separators=None, sort_keys=False):
        return json.dumps(x, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)

    def raise_exception(message):
        raise jinja2.exceptions.TemplateError(message)

    def strftime_now(form):
        return datetime.datetime.fromtimestamp(NOW, datetime.timezone.utc).strftime(form)

    env = jinja2.sandbox.ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[Generation, jinja2.ext.loopcontrols])
    env.filters["tojson"] = tojson
    env.globals["raise_exception"] = raise_exception
    env.globals["strftime_now"] = strftime_now
    return env


def as_text(message):
    """A message whose calls have their arguments as texts, which this template adds to others."""
    def call(call):
        function = call["function"]
        return {**call, "function": {**function, "arguments": json.dumps(function["arguments"])}}
    return {**message, "tool_calls": [call(c) for c in message["tool_calls"]]} if "tool_calls" in message else message


def main():
    env = environment()
    cases = []
    for path in sorted(DIR.glob("*.jinja")):
        template = env.from_string(path.read_text())
        for name, conversation in CONVERSATIONS.items():
            if path.stem == "python" and name != "user" or name == "parts" and path.stem != "gemma-3":
                continue
            if path.stem == "deepseek-r1":
                conversation = {**conversation, "messages": [as_text(m) for m in conversation["messages"]]}
            context = {"tools": None, "documents": None, "add_generation_prompt": True, **conversation}
            case = {"template": path.stem, "name": name, "conversation": conversation}
            try:
                case["text"] = template.render(**context, **SPECIAL)
            except (jinja2.exceptions.TemplateError, TypeError) as error:
                if type(error) is jinja2.exceptions.TemplateError:
                    case["error"] = str(error)
                else:
                    case["fails"] = True
            cases.append(case)
    (DIR / "cases.json").write_text(json.dumps({"now": NOW, "cases": cases}, ensure_ascii=False, indent=1) + "\n")
    errors = sum("error" in c for c in cases)
    print(f"{len(cases)} cases of {len({c['template'] for c in cases})} templates, {errors} refusals")


if __name__ == "__main__":
    main()
