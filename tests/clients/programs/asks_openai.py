"""openai: every endpoint that its client has here, whole and streamed, and errors as its exceptions."""

import sys
from typing import Any

import openai

MESSAGES: Any = [{"role": "user", "content": "hello"}]
client = openai.OpenAI(base_url=f"{sys.argv[1]}/v1", api_key="none", max_retries=0)
asked: Any = {"model": "m", "max_tokens": 4, "seed": 1}
written: Any = {"model": "m", "max_output_tokens": 4, "temperature": 0}

assert [model.id for model in client.models.list()] == ["m"]
assert client.models.retrieve("m").id == "m"

whole = client.chat.completions.create(messages=MESSAGES, logprobs=True, top_logprobs=2, n=2, **asked)
assert [len(choice.logprobs.content) for choice in whole.choices] == [4, 4]
stream = client.chat.completions.create(messages=MESSAGES, stream=True, stream_options={"include_usage": True}, **asked)
chunks = list(stream)
assert chunks[-1].usage.completion_tokens == 4
text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
assert text == whole.choices[0].message.content
with client.chat.completions.stream(messages=MESSAGES, **asked) as events:
    assert "".join(event.delta for event in events if event.type == "content.delta") == text

scored = client.completions.create(prompt="hello", echo=True, logprobs=1, **asked)
assert scored.choices[0].logprobs.token_logprobs[0] is None
assert "".join(part.choices[0].text for part in client.completions.create(prompt="hello", stream=True, **asked))

made = client.responses.create(input="hello", **written)
assert client.responses.retrieve(made.id).output_text == made.output_text
more = client.responses.create(input="more", previous_response_id=made.id, stream=True, **written)
assert [event.type for event in more][-1] == "response.incomplete"
begun = client.responses.create(model="m", input="hello", background=True, max_output_tokens=500)
assert client.responses.cancel(begun.id).status in ("cancelled", "incomplete")

raw = client.chat.completions.with_raw_response.create(messages=MESSAGES, **asked)
assert raw.headers["x-request-id"]
for kind, ask in (
    (openai.NotFoundError, lambda: client.models.retrieve("other")),
    (openai.NotFoundError, lambda: client.responses.retrieve("resp-other")),
    (openai.BadRequestError, lambda: client.chat.completions.create(messages=[], **asked)),
    (openai.BadRequestError, lambda: client.completions.create(prompt="a", suffix="b", **asked)),
):
    try:
        ask()
    except kind as error:
        assert error.message
    else:
        raise AssertionError(f"no {kind.__name__}")
