"""The errors that clients get when a request cannot be served: `{"error": {"message", "type", "param", "code"}}`."""

import math
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import msgspec
from msgspec.structs import replace

from livescale.shared.bus.contract import BusError, CallTimeout, Refusal, TooLarge

RETRY_AFTER_MS = 1_000


class ErrorDetail(msgspec.Struct, frozen=True):
    """OpenAI's four fields; `param` names the parameter at fault."""

    message: str
    type: str
    param: str | None = None
    code: str | None = None


class ErrorBody(msgspec.Struct, frozen=True):
    """The body of every answer with a status of 400 or more, and the last event of a stream that failed."""

    error: ErrorDetail


class ApiError(Exception):
    """Ends a request with this status and this body. `code` names the error for programs, `param` the parameter at
    fault."""

    def __init__(
        self,
        status: int,
        message: str,
        *,
        type: str = "invalid_request_error",
        param: str | None = None,
        code: str | None = None,
        retry_after_ms: int | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.detail = ErrorDetail(message, type, param, code)
        self.retry_after_ms = retry_after_ms

    @property
    def body(self) -> bytes:
        """The JSON body of the answer, an ErrorBody."""
        return msgspec.json.encode(ErrorBody(self.detail))

    @property
    def headers(self) -> dict[str, str]:
        """The headers of the answer. Retry-After is in whole seconds, as HTTP has it; clients that know
        `retry-after-ms` need not round up."""
        if self.status == 401:
            return {"www-authenticate": "Bearer"}
        if self.retry_after_ms is None:
            return {}
        return {"retry-after": str(-(-self.retry_after_ms // 1000)), "retry-after-ms": str(self.retry_after_ms)}


def bad_request(message: str, param: str | None = None, code: str | None = None) -> ApiError:
    return ApiError(400, message, param=param, code=code)


def bad_checkpoint(message: str) -> ApiError:
    return ApiError(422, message, param="path", code="invalid_checkpoint")


def wrong_use(model: str, what: str, instead: str) -> ApiError:
    """A 400 for a model that does something else, with the endpoints to ask `instead`."""
    return ApiError(400, f"The model {model!r} {what}; use {instead}.", param="model", code="wrong_use_of_model")


def too_long(message: str, param: str) -> ApiError:
    return ApiError(400, message, param=param, code="context_length_exceeded")


def model_not_found(model: str) -> ApiError:
    return ApiError(404, f"The model {model!r} does not exist.", param="model", code="model_not_found")


def timed_out(message: str) -> ApiError:
    return ApiError(504, message, type="timeout_error", code="timeout")


def overloaded(message: str, retry_after_ms: int | None = RETRY_AFTER_MS, code: str = "overloaded") -> ApiError:
    """A 503. With `retry_after_ms` None nothing is known that would make a later attempt succeed."""
    return ApiError(503, message, type="server_error", code=code, retry_after_ms=retry_after_ms)


def queue_full(message: str, retry_after_ms: int | None = None) -> ApiError:
    after = retry_after_ms or RETRY_AFTER_MS
    return ApiError(429, message, type="rate_limit_error", code="queue_full", retry_after_ms=after)


def rate_limited(message: str, retry_seconds: float) -> ApiError:
    after = math.ceil(retry_seconds * 1000)
    return ApiError(429, message, type="rate_limit_error", code="rate_limit_exceeded", retry_after_ms=after)


def grammar_failed(message: str, param: str | None) -> ApiError:
    return ApiError(400, message, param=param, code="grammar_failed")


def internal(message: str) -> ApiError:
    return ApiError(500, message, type="server_error", code="internal_error")


def from_bus(error: BusError, model: str | None = None) -> ApiError:
    """The client's view of a call that another process refused or did not answer. The bus's own words are for the log,
    and not for clients."""
    match error:
        case Refusal():
            return _from_refusal(error, model)
        case TooLarge():
            return ApiError(
                413, "The request is too large to be sent to a worker; shorten it.", code="request_too_large"
            )
        case CallTimeout():
            return overloaded("A service that is needed did not answer in time; the request may be sent again.")
        case _:
            return overloaded("A service that is needed cannot be reached; the request may be sent again.")


def from_end(code: int | None, reason: str, grammar_param: str | None = None) -> ApiError:
    """The client's view of an accepted request that ended with an error. `code` is an HTTP status, None where the
    engine failed; 422 where the answer cannot follow the request's grammar, which is that of the `grammar_param`."""
    match code:
        case 400 | 413:
            return bad_request(reason)
        case 422:
            return grammar_failed(reason, grammar_param)
        case 503:
            return overloaded(reason, None)
        case _:
            return internal(f"The model failed: {reason}")


def _from_refusal(refusal: Refusal, model: str | None) -> ApiError:
    match refusal.code:
        case 400:
            return bad_request(refusal.message)
        case 404 if model is not None:
            return model_not_found(model)
        case 404:
            return ApiError(404, refusal.message, code="not_found")
        case 408 | 504:
            return timed_out(refusal.message)
        case 409:
            return ApiError(409, refusal.message, code="conflict")
        case 422:
            return bad_checkpoint(refusal.message)
        case 429:
            return queue_full(refusal.message, refusal.retry_after_ms)
        case 500:
            return internal("A service failed while it handled this request; its log says why.")
        case _:
            return overloaded(refusal.message, refusal.retry_after_ms)


NO_OTHERS: Mapping[str, str] = {}


@contextmanager
def renamed(names: Mapping[str, str]) -> Iterator[None]:
    """Have errors of the block name an endpoint's own parameters. `names`: what the chat's become, by patterns of
    them."""
    try:
        yield
    except ApiError as error:
        detail = error.detail
        message, param = detail.message, detail.param
        for pattern, name in names.items():
            message = re.sub(f"'{pattern}'", f"'{name}'", message)
            param = param and re.sub(f"^{pattern}$", name, param)
        error.args, error.detail = (message,), replace(detail, message=message, param=param)
        raise
