"""Asks a running livescale by LangChain: pip install langchain-openai."""

import os

from langchain_core.prompts import ChatPromptTemplate
from langchain_openai import ChatOpenAI
from pydantic import SecretStr

URL = os.environ.get("LIVESCALE_URL", "http://localhost:8000")

model = ChatOpenAI(
    model=os.environ.get("LIVESCALE_MODEL", "tiny"),
    base_url=f"{URL}/v1",
    api_key=SecretStr(os.environ.get("LIVESCALE_KEY", "none")),
    max_completion_tokens=8,
    temperature=0,  # the likeliest tokens, so the same answer each time
)
prompt = ChatPromptTemplate.from_messages([("system", "You answer in one word."), ("user", "{question}")])

for chunk in (prompt | model).stream({"question": "What colour is the sky?"}):
    print(chunk.text, end="", flush=True)
print()
