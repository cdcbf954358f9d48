"""A plugin for pytest in a checkout of somebody else's: it points tests at a running system, and reads their outcomes.

It stands alone, as `tests` is another package there.
"""

import json
import os
import re
from collections import Counter
from collections.abc import Generator
from typing import Any

import openai
import pytest

MODEL = os.environ["UPSTREAM_MODEL"]
EXPECTED: dict[str, str] = json.loads(os.environ["UPSTREAM_EXPECTED"])
REFUSED = "refused by name"


def pytest_configure() -> None:
    """Have openai's clients ask for our model, whatever the tests call theirs."""
    client: Any = openai._base_client.BaseClient
    build = client._build_request

    def renamed(self: Any, options: Any, **more: Any) -> Any:
        if isinstance(options.json_data, dict) and options.json_data.get("model"):
            options.json_data = {**options.json_data, "model": MODEL}
        options.url = re.sub(r"^/models/[^/]+$", f"/models/{MODEL}", str(options.url))
        return build(self, options, **more)

    client._build_request = renamed


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        for part, reason in EXPECTED.items():
            if part in item.nodeid:
                item.add_marker(pytest.mark.xfail(reason=reason, strict=True))
                break


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, Any, Any]:
    """A test that sends what is refused passes where the answer names it."""
    try:
        return (yield)
    except openai.BadRequestError as error:
        if error.param is None:
            raise
        item.user_properties.append((REFUSED, error.param))
        return None


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """Say what passed by a refusal, by parameter."""
    passed = terminalreporter.stats.get("passed", [])
    refused = Counter(value for report in passed for name, value in report.user_properties if name == REFUSED)
    for param, count in sorted(refused.items()):
        terminalreporter.write_line(f"{REFUSED}: {param} in {count} tests")
