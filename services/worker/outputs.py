"""What comes of a step for gateways: a row for each request that gained a token or ended. Pure."""

from dataclasses import dataclass

from livescale.services.worker.sequence import Sequence
from livescale.shared.messages.requests import FinishReason, Tokens


@dataclass(frozen=True)
class Output:
    """A row of the next token frame to `gateway`; its finish reason is set when the request left the scheduler."""

    gateway: str
    row: Tokens


def gained(
    sequence: Sequence, tokens: list[int], finish_reason: FinishReason | None = None, error: str | None = None
) -> Output:
    """`tokens` are the last that it has."""
    row = Tokens(
        request_id=sequence.request_id,
        index=sequence.generated - len(tokens),
        token_ids=tokens,
        finish_reason=finish_reason,
        error=error,
        cached_tokens=sequence.cached,
    )
    return Output(sequence.request.gateway, row)
