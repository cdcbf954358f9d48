"""The reference is what the code says today."""

import json
from functools import cache

import pytest

from docs.tools.declared import find_metrics
from docs.tools.generate import OUT, make_pages

made = cache(make_pages)


@pytest.mark.parametrize("name", sorted(path.name for path in OUT.iterdir() if path.name != "index.md"))
def test_a_page_is_current(name: str) -> None:
    assert made()[name] == (OUT / name).read_text(), "run: python -m docs.tools.generate"


def test_no_page_is_missing() -> None:
    assert made().keys() == {path.name for path in OUT.iterdir()} - {"index.md"}


def test_every_reference_of_the_asyncapi_document_leads_somewhere() -> None:
    document = json.loads(made()["asyncapi.json"])
    references: list[str] = []

    def walk(node: object) -> None:
        if isinstance(node, dict):
            references.extend(value for key, value in node.items() if key == "$ref")
        for each in node.values() if isinstance(node, dict) else node if isinstance(node, list) else ():
            walk(each)

    walk(document)
    for reference in references:
        found = document
        for part in reference.removeprefix("#/").split("/"):
            found = found[part]
    assert document["operations"]["SUBMIT"]["reply"]["channel"]["$ref"] == "#/channels/SUBMIT.reply"


def test_messages_that_travel_as_json_alone_say_so() -> None:
    messages = json.loads(made()["asyncapi.json"])["components"]["messages"]
    assert messages["BlockReady"]["contentType"] == "application/json"
    assert "contentType" not in messages["Submit"]


def test_no_description_is_indented_as_code_is() -> None:
    pages = (text for name, text in made().items() if name.endswith(".md"))
    assert not [part for text in pages for part in text.split("```")[::2] if "\n    " in part]


def test_every_metric_says_what_it_means() -> None:
    found = list(find_metrics())
    assert len(found) > 50
    assert not [name for name, _, _, doc in found if not doc]
    assert ("vllm:time_to_first_token_seconds", "histogram", ["model_name", "engine"]) in [each[:3] for each in found]
