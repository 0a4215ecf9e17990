#!/usr/bin/env python3
"""The official `anthropic` client against a running server: messages, streams, tools, forms, counts, typed errors.

    python clients/anthropic_test.py URL [--key KEY]
"""

import anthropic

import suite

TEXT = [{"role": "user", "content": "Ahoy"}]
# Fields that this client does not know, or no more. Where random weights say the end of a text depends on the CPU's rounding:
# what needs a text goes on beyond it.
GREEDY = {"temperature": 0}
GOES_ON = {**GREEDY, "ignore_eos": True}
SCHEMA = {"type": "object", "properties": {"knots": {"enum": [5, 12]}}, "required": ["knots"], "additionalProperties": False}
TOOL = {"name": "sail", "description": "Sails.", "input_schema": SCHEMA}


class Suite:
    def __init__(self, url, key):
        self.url = url
        self.client = anthropic.Anthropic(base_url=url, api_key=key, timeout=120)
        self.model = self.client.models.list().data[0].id

    def create(self, **more):
        body = {"model": self.model, "messages": TEXT, "max_tokens": 12, "extra_body": GOES_ON}
        return self.client.messages.create(**{**body, **more})

    def test_a_message_has_text_and_usage(self):
        answer = self.create(system="Be brief.")
        assert answer.type == "message" and answer.role == "assistant" and answer.content[0].type == "text"
        assert answer.stop_reason == "max_tokens" and answer.usage.output_tokens == 12 and answer._request_id

    def test_tokens_are_counted(self):
        count = self.client.messages.count_tokens(model=self.model, messages=TEXT).input_tokens
        usage = self.create().usage
        assert count == usage.input_tokens + usage.cache_read_input_tokens

    def test_a_stream_adds_up_to_the_whole(self):
        whole = self.create(max_tokens=40)
        body = {"model": self.model, "messages": TEXT, "max_tokens": 40, "extra_body": GOES_ON}
        with self.client.messages.stream(**body) as stream:
            text = "".join(stream.text_stream)
            final = stream.get_final_message()
        assert text == whole.content[0].text == final.content[0].text
        assert final.stop_reason == "max_tokens" and final.usage.output_tokens == 40

    def test_a_sequence_ends_an_answer(self):
        text = self.create(max_tokens=40).content[0].text
        stop = next(c for c in text[len(text) // 2:] if not c.isspace())
        answer = self.create(max_tokens=40, stop_sequences=[stop])
        assert answer.stop_reason == "stop_sequence" and answer.stop_sequence == stop

    def test_an_answer_goes_on_with_what_is_begun(self):
        answer = self.create(messages=TEXT + [{"role": "assistant", "content": "Well"}])
        assert answer.content[0].type == "text"

    def test_a_long_answer_is_taken_for_what_there_is_room(self):
        count = self.client.messages.count_tokens(model=self.model, messages=TEXT).input_tokens
        with self.client.messages.stream(
                model=self.model, messages=TEXT, max_tokens=100_000, extra_body=GOES_ON) as stream:
            final = stream.get_final_message()
        assert final.stop_reason == "model_context_window_exceeded" and final.usage.output_tokens + count == 512

    def test_tools_are_called_and_told_what_came_of_it(self):
        forced = {"tools": [TOOL], "tool_choice": {"type": "tool", "name": "sail"}, "max_tokens": 200, "extra_body": GREEDY}
        answer = self.create(**forced)
        call = answer.content[0]
        assert answer.stop_reason == "tool_use" and call.name == "sail" and call.input["knots"] in (5, 12), answer
        body = {"model": self.model, "messages": TEXT, **forced}
        with self.client.messages.stream(**body) as stream:
            assert stream.get_final_message().content[0].input == call.input
        result = {"type": "tool_result", "tool_use_id": call.id, "content": [{"type": "text", "text": "done"}]}
        turns = TEXT + [{"role": "assistant", "content": answer.content}, {"role": "user", "content": [result]}]
        assert self.create(messages=turns, tools=[TOOL]).type == "message"

    def test_a_form_is_kept(self):
        form = {"format": {"type": "json_schema", "schema": SCHEMA}}
        answer = self.create(output_config=form, max_tokens=100, extra_body=GREEDY)
        assert answer.content[0].text.replace(" ", "").replace("\n", "") in ('{"knots":5}', '{"knots":12}'), answer

    def test_errors_are_typed(self):
        def refused(kind, call, name):
            try:
                call()
            except kind as error:
                assert error.body["error"]["type"] == name and error.request_id, error.body
                return
            raise AssertionError(f"no {kind.__name__}")

        refused(anthropic.NotFoundError, lambda: self.create(model="else"), "not_found_error")
        refused(anthropic.BadRequestError, lambda: self.create(extra_body={"temperature": -1}), "invalid_request_error")
        refused(anthropic.BadRequestError, lambda: self.create(messages=[]), "invalid_request_error")
        stranger = anthropic.Anthropic(base_url=self.url, api_key="not the key")
        refused(anthropic.AuthenticationError,
                lambda: stranger.messages.create(model=self.model, messages=TEXT, max_tokens=1), "authentication_error")


if __name__ == "__main__":
    suite.main(Suite, anthropic)
