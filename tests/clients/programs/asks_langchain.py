"""langchain-openai: chats and responses, whole and streamed, with the usage at the end of a stream."""

import sys
from typing import Any

from langchain_openai import ChatOpenAI, OpenAI

place: Any = {"model": "m", "base_url": f"{sys.argv[1]}/v1", "api_key": "none", "temperature": 0}


def written(message: Any) -> int:
    """How many tokens its usage says that the model wrote."""
    return int(message.usage_metadata["output_tokens"])


for responses in (False, True):
    model = ChatOpenAI(max_completion_tokens=5, stream_usage=True, use_responses_api=responses, **place)
    assert written(model.invoke("hello")) == 5
    pieces = list(model.stream("hello"))
    whole = pieces[0]
    for piece in pieces[1:]:
        whole += piece
    assert whole.text
    assert written(whole) == 5
    assert len(model.batch(["a", "b"])) == 2
assert OpenAI(max_tokens=5, **place).invoke("hello")
