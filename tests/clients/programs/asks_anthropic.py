"""anthropic: messages whole and streamed, with a tool, counted, and errors as its exceptions."""

import sys
from typing import Any

import anthropic

client = anthropic.Anthropic(base_url=sys.argv[1], api_key="none", max_retries=0)
asked: Any = {"model": "m", "max_tokens": 8, "messages": [{"role": "user", "content": "hello"}]}

whole = client.messages.create(**asked)
assert (whole.stop_reason, whole.usage.output_tokens) in (("max_tokens", 8), ("end_turn", whole.usage.output_tokens))
with client.messages.stream(**asked) as stream:
    assert [event.type for event in stream][-1] == "message_stop"
    assert stream.get_final_message().usage.input_tokens > 0
counted = client.messages.count_tokens(model="m", messages=asked["messages"])
assert counted.input_tokens == whole.usage.input_tokens + (whole.usage.cache_read_input_tokens or 0)

schema: Any = {"type": "object", "properties": {"city": {"enum": ["Bonn", "Oslo"]}}, "required": ["city"]}
schema["additionalProperties"] = False
tool: Any = {"name": "weather", "description": "Tell it", "input_schema": schema}
choice: Any = {"type": "tool", "name": "weather"}
called = client.messages.create(**{**asked, "max_tokens": 64}, tools=[tool], tool_choice=choice)
[call] = called.content
assert call.type == "tool_use"
assert call.input["city"] in ("Bonn", "Oslo")

for kind, wrong in (
    (anthropic.NotFoundError, {"model": "other"}),
    (anthropic.BadRequestError, {"messages": [{"role": "user", "content": [{"type": "image", "source": {}}]}]}),
):
    try:
        client.messages.create(**{**asked, **wrong})
    except kind as error:
        body: Any = error.body
        assert body["type"] == "error"
    else:
        raise AssertionError(f"no {kind.__name__}")
