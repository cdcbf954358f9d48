"""The page of the documentation shows all of it, and loads nothing."""

from tests.gateway.conftest import Site
from tests.gateway.test_openapi import ROUTES


async def test_the_page_shows_everything_and_needs_nothing_else(site: Site) -> None:
    async with site.http.get(f"{site.url}/docs") as answer:
        page = await answer.text()
    assert answer.headers["content-type"].startswith("text/html")
    for path in ROUTES:
        assert f"<code>{path}</code>" in page
    assert "max_completion_tokens" in page
    assert "://" not in page
    assert "<script" not in page
