#!/usr/bin/env python3
"""The official `openai` client against a running server: every call that Ballast answers, typed errors, retries,
streams, clients that hang up.

    python clients/openai_test.py URL [--key KEY]
"""
import asyncio
import json
import time
import urllib.request

import openai

import suite

TEXT = [{"role": "user", "content": "Ahoy"}]
# Where random weights say the end of a text depends on the CPU's rounding: what needs a text goes on beyond it.
GOES_ON = {"ignore_eos": True}


def idle(url, headers):
    """Whether nothing runs and no block is held."""
    text = urllib.request.urlopen(urllib.request.Request(f"{url}/metrics", headers=headers)).read().decode()
    gauges = ("vllm:num_requests_running{", "vllm:num_requests_waiting{", "vllm:kv_cache_usage_perc{")
    lines = [line for line in text.splitlines() if line.startswith(gauges)]
    assert len(lines) == 3
    return all(float(line.rsplit(" ", 1)[1]) == 0 for line in lines)


class Suite:
    def __init__(self, url, key):
        self.url, self.headers = url, {"Authorization": f"Bearer {key}"}
        self.client = openai.OpenAI(base_url=f"{url}/v1", api_key=key, timeout=120)
        self.key = key
        self.model = self.client.models.list().data[0].id

    def test_models_are_listed_and_found(self):
        models = self.client.models.list().data
        assert models and self.client.models.retrieve(models[0].id).id == models[0].id

    def test_a_completion_has_text_and_usage(self):
        answer = self.client.completions.create(model=self.model, prompt="The ship", max_tokens=8, temperature=0)
        assert answer.object == "text_completion" and answer.choices[0].finish_reason in ("stop", "length")
        assert answer.usage.total_tokens == answer.usage.prompt_tokens + answer.usage.completion_tokens

    def test_prompts_of_every_kind_are_answered_in_order(self):
        for prompt, n in (("a", 1), (["a", "b"], 2), ([5, 6, 7], 1), ([[5, 6], [7]], 2)):
            answer = self.client.completions.create(model=self.model, prompt=prompt, max_tokens=3, temperature=0)
            assert [choice.index for choice in answer.choices] == list(range(n))

    def test_echo_gives_logprobs_of_the_prompt(self):
        answer = self.client.completions.create(
            model=self.model, prompt=[5, 6, 7, 8], max_tokens=1, echo=True, logprobs=1, temperature=0, extra_body=GOES_ON)
        logprobs = answer.choices[0].logprobs
        assert len(logprobs.tokens) == 5 and logprobs.token_logprobs[0] is None
        assert all(value <= 0 for value in logprobs.token_logprobs[1:])

    def test_a_chat_has_a_message_and_logprobs(self):
        answer = self.client.chat.completions.create(
            model=self.model, messages=TEXT, max_tokens=6, temperature=0, logprobs=True, top_logprobs=2, n=2,
            extra_body=GOES_ON)
        assert len(answer.choices) == 2 and answer.choices[0].message.role == "assistant"
        assert len(answer.choices[0].logprobs.content) <= 6
        assert len(answer.choices[0].logprobs.content[0].top_logprobs) == 2

    def test_the_same_seed_says_the_same(self):
        ask = lambda seed: self.client.chat.completions.create(
            model=self.model, messages=TEXT, max_tokens=30, seed=seed, temperature=1, extra_body=GOES_ON).choices[0].message.content
        assert ask(4) == ask(4) != ask(5)

    def test_a_stream_adds_up_to_the_whole(self):
        body = {"model": self.model, "messages": TEXT, "max_tokens": 60, "temperature": 0, "extra_body": GOES_ON}
        whole = self.client.chat.completions.create(**body)
        chunks = list(self.client.chat.completions.create(**body, stream=True, stream_options={"include_usage": True}))
        assert chunks[-1].choices == [] and chunks[-1].usage == whole.usage
        text = "".join(c.choices[0].delta.content or "" for c in chunks if c.choices)
        assert text == whole.choices[0].message.content
        finishes = [c.choices[0].finish_reason for c in chunks if c.choices and c.choices[0].finish_reason]
        assert finishes == [whole.choices[0].finish_reason]

    def test_the_streaming_helper_understands(self):
        # The helper takes an answer that ends at its length for an error: stop before.
        body = {"model": self.model, "messages": TEXT, "max_tokens": 60, "temperature": 0, "extra_body": GOES_ON}
        text = self.client.chat.completions.create(**body).choices[0].message.content
        stop = text[len(text) // 2]
        with self.client.chat.completions.stream(**body, stop=stop) as stream:
            kinds = {event.type for event in stream}
            final = stream.get_final_completion()
        assert final.choices[0].message.content == text[: text.index(stop)]
        assert final.choices[0].finish_reason == "stop" and ("content.delta" in kinds or not text.index(stop))

    def test_stop_strings_are_not_in_the_text(self):
        body = {"model": self.model, "prompt": "x", "max_tokens": 40, "temperature": 0, "extra_body": GOES_ON}
        whole = self.client.completions.create(**body).choices[0].text
        stop = whole[len(whole) // 2]
        answer = self.client.completions.create(**body, stop=[stop])
        assert answer.choices[0].text == whole[: whole.index(stop)] and answer.choices[0].finish_reason == "stop"

    def respond(self, **more):
        body = {"model": self.model, "input": "Ahoy", "max_output_tokens": 12, "temperature": 0, "extra_body": GOES_ON}
        return self.client.responses.create(**{**body, **more})

    def test_a_response_has_text_and_usage(self):
        answer = self.respond(instructions="Be brief.")
        assert answer.output_text and answer.status == "incomplete" and answer.usage.output_tokens == 12
        assert answer.incomplete_details.reason == "max_output_tokens" and answer.instructions == "Be brief."
        count = self.client.responses.input_tokens.count(model=self.model, input="Ahoy", instructions="Be brief.")
        assert count.input_tokens == answer.usage.input_tokens
        chat = self.client.chat.completions.create(
            model=self.model, messages=[{"role": "developer", "content": "Be brief."}, *TEXT], max_tokens=12, temperature=0,
            extra_body=GOES_ON)
        assert chat.choices[0].message.content == answer.output_text

    def test_a_streamed_response_adds_up_to_the_whole(self):
        whole = self.respond(max_output_tokens=60)
        stop = whole.output_text[len(whole.output_text) // 2]
        # The helper takes an answer that ends at its length for one that is not there.
        body = {"model": self.model, "input": "Ahoy", "temperature": 0, "extra_body": {**GOES_ON, "stop": stop}}
        with self.client.responses.stream(**body) as stream:
            text = "".join(event.delta for event in stream if event.type == "response.output_text.delta")
            final = stream.get_final_response()
        assert text == final.output_text == whole.output_text[: whole.output_text.index(stop)]
        assert final.status == "completed"
        events = list(self.respond(stream=True))
        assert [event.sequence_number for event in events] == list(range(len(events)))
        assert events[0].type == "response.created" and events[-1].type == "response.incomplete"

    def test_a_response_calls_and_is_told_what_came_of_it(self):
        schema = {"type": "object", "properties": {"knots": {"enum": [5, 12]}}, "required": ["knots"], "additionalProperties": False}
        tool = {"type": "function", "name": "sail", "description": "Sails.", "parameters": schema, "strict": True}
        forced = {"tools": [tool], "tool_choice": {"type": "function", "name": "sail"}, "max_output_tokens": 200, "extra_body": {}}
        answer = self.respond(**forced)
        call = answer.output[0]
        assert answer.status == "completed" and call.type == "function_call" and call.name == "sail", answer
        assert json.loads(call.arguments)["knots"] in (5, 12)
        events = list(self.respond(**forced, stream=True))
        assert events[-1].response.output[0].arguments == call.arguments
        result = {"type": "function_call_output", "call_id": call.call_id, "output": "done"}
        assert self.respond(input=[{"role": "user", "content": "Ahoy"}, call, result], tools=[tool]).output

    def test_a_response_keeps_a_form(self):
        schema = {"type": "object", "properties": {"knots": {"enum": [5, 12]}}, "required": ["knots"], "additionalProperties": False}
        form = {"format": {"type": "json_schema", "name": "course", "schema": schema, "strict": True}}
        answer = self.respond(text=form, max_output_tokens=100, extra_body={})
        assert json.loads(answer.output_text)["knots"] in (5, 12)

    def test_errors_are_typed(self):
        def refused(kind, call, code=None):
            try:
                call()
            except kind as error:
                assert isinstance(error.body, dict) and (code is None or error.code == code), error.body
                assert error.request_id
                return
            raise AssertionError(f"no {kind.__name__}")

        complete = self.client.completions.create
        refused(openai.NotFoundError, lambda: complete(model="else", prompt="x"), "model_not_found")
        refused(openai.BadRequestError, lambda: complete(model=self.model, prompt="x", temperature=-1))
        refused(openai.BadRequestError, lambda: complete(model=self.model, prompt=""))
        refused(openai.BadRequestError, lambda: complete(model=self.model, prompt=[5] * 9000), "context_length_exceeded")
        refused(openai.BadRequestError, lambda: self.client.chat.completions.create(model=self.model, messages=[]))
        refused(openai.BadRequestError, lambda: self.respond(previous_response_id="resp_1"), "not_supported")
        refused(openai.NotFoundError, lambda: self.client.post("/nothing", cast_to=object), "not_found")
        stranger = openai.OpenAI(base_url=f"{self.url}/v1", api_key="not the key")
        refused(openai.AuthenticationError, lambda: stranger.models.list(), "invalid_api_key")

    def test_ids_and_raw_responses(self):
        raw = self.client.completions.with_raw_response.create(
            model=self.model, prompt="x", max_tokens=1, extra_headers={"X-Request-Id": "mine-1"})
        assert raw.headers["x-request-id"] == "mine-1" and raw.parse()._request_id == "mine-1"

    def test_a_client_that_hangs_up_frees_everything(self):
        body = {"model": self.model, "prompt": [7] * 100, "max_tokens": 6000, "extra_body": {"ignore_eos": True}}
        stream = self.client.completions.create(**body, stream=True)
        next(iter(stream))
        stream.close()
        try:
            self.client.with_options(timeout=0.3, max_retries=0).completions.create(**body)
        except openai.APITimeoutError:
            pass
        until = time.monotonic() + 30
        while not idle(self.url, self.headers):
            assert time.monotonic() < until, "a client that is gone still holds blocks"

    def test_many_at_once_are_answered_as_alone(self):
        async def both():
            client = openai.AsyncOpenAI(base_url=f"{self.url}/v1", api_key=self.key, max_retries=8)
            ask = lambda i: client.completions.create(model=self.model, prompt=[i + 5, 9], max_tokens=12, temperature=0)
            together = await asyncio.gather(*(ask(i) for i in range(60)))
            alone = [await ask(i) for i in range(0, 60, 20)]
            await client.close()
            return together, alone
        together, alone = asyncio.run(both())
        assert [a.choices[0].text for a in alone] == [together[i].choices[0].text for i in range(0, 60, 20)]

    def test_files_and_batches(self):
        line = lambda i, url, body: json.dumps({"custom_id": f"line-{i}", "method": "POST", "url": url, "body": body})
        chat = {"model": self.model, "messages": TEXT, "max_tokens": 5, "temperature": 0}
        lines = [line(i, "/v1/chat/completions", chat) for i in range(5)]
        lines.append(line(5, "/v1/chat/completions", {**chat, "temperature": -1}))
        file = self.client.files.create(file=("../../evil name.jsonl", "\n".join(lines).encode() + b"\n"), purpose="batch")
        assert file.id.startswith("file-") and file.purpose == "batch"
        assert self.client.files.retrieve(file.id) == file
        assert file.id in [each.id for each in self.client.files.list()]
        assert self.client.files.content(file.id).text.strip("\n").split("\n") == lines
        batch = self.client.batches.create(input_file_id=file.id, endpoint="/v1/chat/completions",
                                           completion_window="24h", metadata={"ship": "one"})
        until = time.monotonic() + 300
        while batch.status not in ("completed", "failed", "cancelled"):
            assert time.monotonic() < until, batch
            time.sleep(0.05)
            batch = self.client.batches.retrieve(batch.id)
        assert batch.status == "completed" and batch.metadata == {"ship": "one"}, batch
        counts = batch.request_counts
        assert (counts.total, counts.completed, counts.failed) == (6, 5, 1), counts
        answers = [json.loads(text) for text in self.client.files.content(batch.output_file_id).text.strip("\n").split("\n")]
        alone = self.client.chat.completions.create(**chat).choices[0].message.content
        assert {a["custom_id"] for a in answers} == {f"line-{i}" for i in range(5)}
        assert all(a["response"]["body"]["choices"][0]["message"]["content"] == alone for a in answers)
        errors = [json.loads(text) for text in self.client.files.content(batch.error_file_id).text.strip("\n").split("\n")]
        assert [e["custom_id"] for e in errors] == ["line-5"]
        assert batch.id in [each.id for each in self.client.batches.list()]
        assert self.client.files.delete(file.id).deleted
        try:
            self.client.files.retrieve(file.id)
            raise AssertionError("it was deleted")
        except openai.NotFoundError:
            pass


if __name__ == "__main__":
    suite.main(Suite, openai)
