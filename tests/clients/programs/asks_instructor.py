"""instructor: objects of a class, by each of its ways. A way that sends what is refused has to be told its name."""

import sys
from typing import Any

import instructor
from instructor.core import IncompleteOutputException, InstructorRetryException
from openai import OpenAI
from pydantic import BaseModel, ConfigDict, Field

# What each way sends that may be refused.
WAYS = {
    "JSON": ["response_format"],
    "JSON_SCHEMA": ["response_format"],
    "TOOLS": ["tools", "tool_choice"],
    "TOOLS_STRICT": ["tools", "tool_choice"],
}
FREE = ("JSON", "TOOLS")  # they ask for any object, which a model with random parameters may not end


class Person(BaseModel):
    """What is to come back; short and without more, as the model writes what it likes."""

    model_config = ConfigDict(extra="forbid")
    name: str = Field(max_length=8)
    age: int = Field(ge=0, le=150)


def outcome(way: str) -> str:
    """What comes of asking in this way."""
    plain = OpenAI(base_url=f"{sys.argv[1]}/v1", api_key="none", max_retries=0)
    client = instructor.from_openai(plain, mode=instructor.Mode[way])
    asked: Any = [{"role": "user", "content": "Ada is 36"}]
    try:
        person = client.create(model="m", response_model=Person, messages=asked, max_retries=0, max_tokens=300, seed=1)
    except IncompleteOutputException:
        assert way in FREE
        return "cut at max_tokens"
    except InstructorRetryException as error:
        if "Error code: 400" in str(error):
            [name] = [name for name in WAYS[way] if f"'param': '{name}'" in str(error)]
            return f"refused by name, {name}"
        assert way in FREE, error
        return "not an object of the class"
    assert isinstance(person, Person)
    return repr(person)


for way in WAYS:
    print(f"{way}: {outcome(way)}")
