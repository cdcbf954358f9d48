"""langchain-openai: chats and responses, whole and streamed, with the usage at the end of a stream."""

import sys
from typing import Any

from langchain_openai import ChatOpenAI, OpenAI

place: Any = {"model": "m", "base_url": f"{sys.argv[1]}/v1", "api_key": "none"}

for responses in (False, True):
    model = ChatOpenAI(max_completion_tokens=5, stream_usage=True, use_responses_api=responses, **place)
    assert model.invoke("hello").usage_metadata["output_tokens"] == 5
    pieces = list(model.stream("hello"))
    whole = pieces[0]
    for piece in pieces[1:]:
        whole += piece
    assert whole.text
    assert whole.usage_metadata["output_tokens"] == 5
    assert len(model.batch(["a", "b"])) == 2
assert OpenAI(max_tokens=5, **place).invoke("hello")
