"""instructor: objects of a class, by each of its ways. A way that sends what is refused has to be told its name."""

import sys
from typing import Any

import instructor
from instructor.core import InstructorRetryException
from openai import OpenAI
from pydantic import BaseModel, Field

WAYS = {"JSON": "response_format", "JSON_SCHEMA": "response_format", "TOOLS": "tools", "TOOLS_STRICT": "tools"}


class Person(BaseModel):
    """What is to come back; short, as the model writes what it likes."""

    name: str = Field(max_length=8)
    age: int = Field(ge=0, le=150)


for way, parameter in WAYS.items():
    plain = OpenAI(base_url=f"{sys.argv[1]}/v1", api_key="none", max_retries=0)
    client = instructor.from_openai(plain, mode=instructor.Mode[way])
    asked: Any = [{"role": "user", "content": "Ada is 36"}]
    try:
        person = client.create(model="m", response_model=Person, messages=asked, max_retries=0, max_tokens=300)
    except InstructorRetryException as error:
        assert f"'param': '{parameter}'" in str(error), error
        print(f"{way}: refused by name, {parameter}")
    else:
        assert isinstance(person, Person)
        print(f"{way}: {person}")
