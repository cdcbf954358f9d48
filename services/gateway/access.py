"""Who may enter: the key is looked up, the operator's endpoints are kept apart, and the key's limits are kept."""

import re
from collections.abc import Mapping

from livescale.services.gateway.errors import ApiError, rate_limited
from livescale.services.gateway.keys import ApiKey, Client, Keyring
from livescale.services.gateway.rate_limits import OverLimit
from livescale.shared.runtime.clock import Clock

ADMIN = "/admin/"
GUARDED = ("/v1/", ADMIN, "/tokenize", "/detokenize")
LOCAL = frozenset({b"127.0.0.1", b"localhost", b"[::1]"})
HOST = re.compile(rb"(\[[0-9a-fA-F:]+\]|[^:\[\]]*)(?::\d+)?")

Headers = Mapping[bytes, bytes]


class Visit:
    """One request of a client while it runs; `end` it."""

    def __init__(self, client: Client, clock: Clock) -> None:
        self.who = client.name
        self._client = client
        self._clock = clock
        self._entered = False
        self._reserved = self._spent = 0

    def enter(self) -> None:
        """Raises ApiError 429 where the key's requests are used up."""
        self._check(self._client.quota.enter(self._clock.now()))
        self._entered = True

    def reserve(self, tokens: int) -> None:
        """Before anything is generated: what it may come to. Raises ApiError 429."""
        self._check(self._client.quota.reserve(tokens, self._clock.now()))
        self._reserved = tokens

    def spend(self, tokens: int) -> None:
        """After it: what it came to."""
        self._spent = tokens

    def end(self) -> None:
        if not self._entered:
            return
        self._client.quota.leave()
        self._client.quota.settle(self._reserved, self._spent, self._clock.now())

    def headers(self) -> list[tuple[str, str]]:
        return self._client.quota.headers(self._clock.now())

    def _check(self, over: OverLimit | None) -> None:
        if over is not None:
            raise rate_limited(_explain(self._client.name, over), over.retry_seconds)


class Guard:
    """`is_local`: the gateway listens on loopback only, where without keys everybody is its operator."""

    def __init__(self, keys: Keyring, clock: Clock, is_local: bool) -> None:
        self._keys = keys
        self.with_keys = bool(keys)
        self._clock = clock
        self._is_local = is_local
        self._anybody = Client(ApiKey(name="anybody", key=""))

    def admit(self, path: str, headers: Headers) -> tuple[Visit, ApiError | None]:
        """The visit, and why it ends at the door: 401 for the key, 403 for want of rights, 429 over a limit."""
        visit = Visit(self._anybody, self._clock)
        try:
            visit = Visit(self._recognise(path, headers), self._clock)
            visit.enter()
        except ApiError as refusal:
            return visit, refusal
        return visit, None

    def _recognise(self, path: str, headers: Headers) -> Client:
        if not path.startswith(GUARDED):
            return self._anybody
        if not self.with_keys:
            if path.startswith(ADMIN) and not (self._is_local and _is_from_here(headers)):
                raise _forbidden("Without API keys this endpoint answers on loopback only: start with --api-key.")
            return self._anybody
        client = self._keys.find(_bearer(headers))
        if client is None:
            message = "The API key is missing or wrong: send 'Authorization: Bearer KEY'."
            raise ApiError(401, message, code="invalid_api_key")
        if path.startswith(ADMIN) and not client.is_admin:
            raise _forbidden(f"The key {client.name!r} has no admin rights.")
        return client


def _bearer(headers: Headers) -> bytes:
    scheme, _, key = headers.get(b"authorization", b"").partition(b" ")
    return key.strip() if scheme.lower() == b"bearer" else b""


def _is_from_here(headers: Headers) -> bool:
    """Not from a page in the operator's browser: those have an origin, or reach us under their own name."""
    host = HOST.fullmatch(headers.get(b"host", b""))
    return b"origin" not in headers and host is not None and host[1].lower() in LOCAL


def _forbidden(message: str) -> ApiError:
    return ApiError(403, message, type="permission_error", code="insufficient_permissions")


def _explain(name: str, over: OverLimit) -> str:
    allowed = f"{over.limit} requests at once" if over.what == "concurrency" else f"{over.limit} {over.what} a minute"
    return f"Rate limit reached: the key {name!r} is allowed {allowed}."
