"""What is asked of a server (`Ask`), what came of it (`RequestRecord`), and what is wrong with an answer."""

from collections.abc import Iterable
from itertools import pairwise
from pathlib import Path

import msgspec


class Ask(msgspec.Struct, frozen=True):
    """One request to send `at` seconds after the start: the prompt's token ids and how many tokens to generate.

    Greedy at `temperature` 0, else sampled from `seed`: the same tokens every time either way.
    """

    index: int
    at: float
    prompt: list[int]
    max_tokens: int
    temperature: float = 0.0
    seed: int = 0


class RequestRecord(msgspec.Struct, frozen=True, kw_only=True):
    """One request as its client saw it. Times are in seconds since the epoch; `token_at` has one per token.

    `due` is when it should have been sent: latency counts from there, so a late generator hides nothing.
    `id` is the server's, empty where it gave none. `retry_after` (seconds) is set where the server did not take the
    request and said when to try again; `broken` is whether a connection that there was failed.
    """

    index: int
    due: float
    sent: float
    ended: float
    prompt_tokens: int
    asked_tokens: int
    id: str = ""
    status: int | None = None
    finish_reason: str | None = None
    error: str | None = None
    retry_after: float | None = None
    broken: bool = False
    token_ids: list[int] = []
    token_at: list[float] = []

    @property
    def ttft(self) -> float | None:
        """Seconds from when the request was due to its first token; None without a token."""
        return self.token_at[0] - self.due if self.token_at else None

    @property
    def gaps(self) -> list[float]:
        """Seconds between each token and the next."""
        return [after - before for before, after in pairwise(self.token_at)]


def find_fault(record: RequestRecord) -> str | None:
    """Why a stream was not complete, or None: exactly the tokens asked for, in one stream, ended as it should."""
    if record.error is not None:
        return record.error
    if record.finish_reason is not None and not record.token_ids:
        return "no token ids came: the server does not know return_token_ids"
    if len(record.token_ids) != record.asked_tokens:
        return f"{len(record.token_ids)} of {record.asked_tokens} tokens came"
    if record.finish_reason != "length":
        return f"finish reason {record.finish_reason!r} instead of 'length'"
    return None


def write_records(path: Path, records: Iterable[RequestRecord]) -> None:
    """Write the records to a file, one JSON object a line."""
    path.write_bytes(b"".join(msgspec.json.encode(record) + b"\n" for record in records))
