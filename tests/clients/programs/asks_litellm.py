"""litellm: chats and completions, whole, streamed and asynchronous, and errors as its exceptions."""

import asyncio
import sys
from typing import Any

import litellm

MESSAGES: Any = [{"role": "user", "content": "hello"}]
place: Any = {"api_base": f"{sys.argv[1]}/v1", "api_key": "none", "max_tokens": 4, "seed": 1}

whole = litellm.completion("openai/m", MESSAGES, **place)
assert whole.usage.completion_tokens == 4
stream = litellm.completion("openai/m", MESSAGES, stream=True, stream_options={"include_usage": True}, **place)
chunks = list(stream)
assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices) == (
    whole.choices[0].message.content
)
assert chunks[-1].usage.completion_tokens == 4
assert litellm.text_completion(model="text-completion-openai/m", prompt="hello", **place).usage.completion_tokens == 4
scored = asyncio.run(litellm.acompletion("openai/m", MESSAGES, n=2, logprobs=True, top_logprobs=2, **place))
assert [len(choice.logprobs.content) for choice in scored.choices] == [4, 4]
try:
    litellm.completion("openai/m", MESSAGES, temperature=9, **place)
except litellm.BadRequestError as error:
    assert "temperature" in str(error)
else:
    raise AssertionError("no BadRequestError")
