"""The page of the documentation shows all of it, and loads nothing."""

from tests.gateway.conftest import ServedGateway
from tests.gateway.test_openapi import ROUTES


async def test_the_page_shows_everything_and_needs_nothing_else(served: ServedGateway) -> None:
    async with served.http.get(f"{served.url}/docs") as answer:
        page = await answer.text()
    assert answer.headers["content-type"].startswith("text/html")
    for path in ROUTES:
        assert f"<code>{path}</code>" in page
    assert "max_completion_tokens" in page
    assert "://" not in page
    assert "<script" not in page
