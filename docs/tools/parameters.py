"""What becomes of each parameter of OpenAI's and vLLM's requests, as a page."""

from collections.abc import Mapping

from docs.tools.described import Document
from docs.tools.markdown import clean, code, page, table
from livescale.services.gateway.bodies import ChatRequest, CompletionRequest
from livescale.services.gateway.parameters import IGNORED, REFUSED
from livescale.services.gateway.responses_request import ResponsesRequest

BODIES = {
    "/v1/chat/completions": ChatRequest,
    "/v1/completions": CompletionRequest,
    "/v1/responses": ResponsesRequest,
}


def parameters(rest: Document) -> str:
    """The page: a table for each endpoint, and a count."""
    parts = [
        "# Parameters of requests",
        "<!-- Made by docs/tools/generate.py; do not edit. -->",
        "Each parameter of OpenAI's and vLLM's is right, ignored, or refused with status 400 and this reason. A "
        "refused parameter is accepted where its value asks for nothing. Others are refused as unknown.",
    ]
    schemas = rest["components"]["schemas"]
    for path, body in BODIES.items():
        described: Mapping[str, Document] = schemas[body.__name__]["properties"]
        right = {name: schema for name, schema in described.items() if name not in IGNORED[body]}
        parts.append(f"## {path}")
        counts = f"{len(right)} are right, {len(IGNORED[body])} ignored, {len(REFUSED[body])} refused."
        parts += [counts, table(("parameter", "what becomes of it", ""), _rows(right, body))]
    return page(parts)


def _rows(right: Mapping[str, Document], body: type) -> list[tuple[str, str, str]]:
    return [
        *((code(name), "right", clean(schema.get("description", ""))) for name, schema in sorted(right.items())),
        *((code(name), "ignored", why) for name, why in sorted(IGNORED[body].items())),
        *((code(name), "refused", refused.reason) for name, refused in sorted(REFUSED[body].items())),
    ]
