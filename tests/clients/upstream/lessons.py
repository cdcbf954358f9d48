"""Prints the conversations of vLLM's tests of tools with an answer to each, for a tiny model to learn by heart:
`python -m tests.clients.upstream.lessons CHECKOUT > LESSONS`, and then `livescale make-model DIR --teach LESSONS`.
"""

import argparse
import importlib.util
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

from tests.clients.upstream.plugin.upstream_utils import put_utils

CONVERSATIONS = "tests/tool_use/utils.py"


def conversations(checkout: Path) -> ModuleType:
    """Load vLLM's own module of them. It asks the helpers of vLLM's tests for a path alone, which is given."""
    put_utils(checkout)
    spec = importlib.util.spec_from_file_location("conversations", checkout / CONVERSATIONS)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def transcripts(of: ModuleType) -> Iterator[dict[str, Any]]:
    """Each with its tools. Those in which a tool has answered also have the calls, which are learned with them."""
    weather, both = [of.WEATHER_TOOL], [of.WEATHER_TOOL, of.SEARCH_TOOL]
    yield _answered(of.MESSAGES_WITHOUT_TOOLS, "A fish swims into a wall: dam.", [])
    yield _answered(of.MESSAGES_WITHOUT_TOOLS, "A fish swims into a wall: dam.", weather)
    yield _answered(of.MESSAGES_WITH_TOOL_RESPONSE, "It has 98 degrees there.", both)
    yield _answered(of.MESSAGES_WITH_PARALLEL_TOOL_RESPONSE, "They have 98 and 78 degrees.", both)


def _answered(messages: list[Any], answer: str, tools: list[Any]) -> dict[str, Any]:
    return {"messages": [*messages, {"role": "assistant", "content": answer}], "tools": tools}


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.clients.upstream.lessons", description=__doc__)
    parser.add_argument("checkout", type=Path, help="of vllm-project/vllm")
    for transcript in transcripts(conversations(parser.parse_args().checkout.resolve())):
        sys.stdout.write(f"{json.dumps(transcript)}\n")


if __name__ == "__main__":
    main()
