"""What travels beside a message: deadline, epoch, request id, trace; and a refusal's code on the way back."""

import re
from collections.abc import Mapping

from livescale.shared.bus.contract import Context, Refusal

DEADLINE = "Deadline"
TIMEOUT = "Timeout-Ms"
EPOCH = "Epoch"
REQUEST_ID = "X-Request-Id"
TRACEPARENT = "traceparent"
ERROR = "Nats-Service-Error"
ERROR_CODE = "Nats-Service-Error-Code"
RETRY = "Retry-After-Ms"

WHOLE = re.compile(r"-?[0-9]{1,15}")  # milliseconds and epochs; longer ones would overflow clocks
CODE = re.compile(r"[0-9]{1,9}")
LONGEST_SHOWN = 32

STATUS = "Status"  # what a server answers by itself, in the place of headers

VERSION = "NATS/1.0"
LINE_END = "\r\n"
NEWLINES = str.maketrans("\r\n", "  ")

Headers = dict[str, str]


def pack(headers: Mapping[str, str]) -> bytes:
    """As they stand in front of a payload: every value is one line."""
    lines = [f"{name}: {value.translate(NEWLINES).strip()}{LINE_END}" for name, value in headers.items()]
    return f"{VERSION}{LINE_END}{''.join(lines)}{LINE_END}".encode(errors="replace")


def unpack(head: bytes) -> Headers:
    """What is no header is left out; bytes that are no text are replaced."""
    first, *lines = head.decode(errors="replace").split(LINE_END)
    status = first[len(VERSION) :].split(maxsplit=1)
    headers = {STATUS: status[0]} if status else {}
    for line in lines:
        name, colon, value = line.partition(":")
        if colon:
            headers[name.strip()] = value.strip()
    return headers


def context_headers(context: Context, timeout: float) -> Headers:
    headers = {TIMEOUT: str(max(1, round(timeout * 1000)))}
    if context.deadline is not None:
        headers[DEADLINE] = str(round(context.deadline * 1000))
    if context.epoch is not None:
        headers[EPOCH] = str(context.epoch)
    if context.request_id is not None:
        headers[REQUEST_ID] = context.request_id
    if context.traceparent is not None:
        headers[TRACEPARENT] = context.traceparent
    return headers


def read_context(headers: Mapping[str, str], wall: float) -> Context:
    """The caller's context, its deadline the earlier of `Deadline` and now + `Timeout-Ms`. Raises Refusal 400."""
    deadline, timeout, epoch = (_integer(headers, name) for name in (DEADLINE, TIMEOUT, EPOCH))
    limits = [
        *([] if deadline is None else [deadline / 1000]),
        *([] if timeout is None else [wall + timeout / 1000]),
    ]
    return Context(
        deadline=min(limits, default=None),
        epoch=epoch,
        request_id=headers.get(REQUEST_ID),
        traceparent=headers.get(TRACEPARENT),
    )


def refusal_headers(refusal: Refusal) -> Headers:
    headers = {ERROR: refusal.message, ERROR_CODE: str(refusal.code)}
    if refusal.retry_after_ms is not None:
        headers[RETRY] = str(refusal.retry_after_ms)
    return headers


def read_refusal(headers: Mapping[str, str]) -> Refusal | None:
    code = headers.get(ERROR_CODE)
    if code is None:
        return None
    retry = headers.get(RETRY, "")
    return Refusal(
        int(code) if CODE.fullmatch(code) else 500,
        headers.get(ERROR, "refused without a reason"),
        int(retry) if CODE.fullmatch(retry) else None,
    )


def _integer(headers: Mapping[str, str], name: str) -> int | None:
    value = headers.get(name)
    if value is None:
        return None
    if not WHOLE.fullmatch(value):
        raise Refusal(400, f"header {name} is not a whole number: {value[:LONGEST_SHOWN]!r}")
    return int(value)
