"""Asks a running livescale by the package `openai`: a stream, and a conversation that is kept by its name."""

import os

from openai import OpenAI
from openai.types.chat import ChatCompletionMessageParam

URL = os.environ.get("LIVESCALE_URL", "http://localhost:8000")
MODEL = os.environ.get("LIVESCALE_MODEL", "tiny")

client = OpenAI(base_url=f"{URL}/v1", api_key=os.environ.get("LIVESCALE_KEY", "none"))

for chunk in client.completions.create(model=MODEL, prompt="Once upon", max_tokens=8, stream=True):
    print(chunk.choices[0].text, end="", flush=True)
print()

messages: list[ChatCompletionMessageParam] = [{"role": "user", "content": "Hello"}]
for _ in range(2):
    # The name lets workers keep what they computed of this conversation for its next prompt.
    answer = client.chat.completions.create(model=MODEL, messages=messages, max_tokens=8, prompt_cache_key="talk-7")
    text = answer.choices[0].message.content or ""
    print(text)
    messages += [{"role": "assistant", "content": text}, {"role": "user", "content": "Go on"}]
