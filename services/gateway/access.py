"""API keys of the gateway: the clients that they identify, their rights and their rate limits."""

import hashlib
import hmac
import re
import stat
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Annotated

import msgspec
import yaml
from msgspec import Meta

from livescale.services.gateway.errors import ApiError, rate_limited
from livescale.services.gateway.rate_limits import KeyLimits, OverLimit, Quota
from livescale.shared.runtime.clock import Clock

# The key without a name and the key of this name are the operator's.
BARE, OPERATOR = "default", "admin"
NAMED = re.compile(r"([A-Za-z][A-Za-z0-9_.-]*)=([^=].*)", re.DOTALL)

PerMinute = Annotated[int, Meta(ge=1, le=10**9)]

ADMIN = ("/admin/", "/v1/load_lora_adapter", "/v1/unload_lora_adapter")
GUARDED = ("/v1/", "/v2/", *ADMIN, "/tokenize", "/detokenize", "/pooling", "/classify", "/score", "/rerank")
LOCAL = frozenset({b"127.0.0.1", b"localhost", b"[::1]"})
HOST = re.compile(rb"(\[[0-9a-fA-F:]+\]|[^:\[\]]*)(?::\d+)?")

RawHeaders = Mapping[bytes, bytes]


class BadKeys(Exception):
    """The keys cannot be used. The message says which and why, and never shows a key."""


class ApiKey(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, rename="kebab"):
    """One entry of the file of keys. `admin` opens /admin/v1; the limits hold for each gateway process on its own."""

    name: Annotated[str, Meta(pattern=r"^[A-Za-z][A-Za-z0-9_.-]*$", max_length=64)]
    key: str
    admin: bool = False
    requests_per_minute: PerMinute | None = None
    tokens_per_minute: PerMinute | None = None
    max_concurrent: PerMinute | None = None

    def __repr__(self) -> str:
        return f"ApiKey(name={self.name!r})"

    @property
    def limits(self) -> KeyLimits:
        return KeyLimits(
            requests_per_minute=self.requests_per_minute,
            tokens_per_minute=self.tokens_per_minute,
            max_concurrent=self.max_concurrent,
        )


class KeyHolder:
    """The client that presents a certain key, with its rights and what it has used of its limits."""

    def __init__(self, key: ApiKey) -> None:
        self.name = key.name
        self.is_admin = key.admin
        self.quota = Quota(key.limits)


class Keyring:
    """Finds the client that a key belongs to; only hashes of keys are kept. Raises BadKeys for names or keys that are
    given twice, or cannot be sent in a header."""

    def __init__(self, keys: Iterable[ApiKey]) -> None:
        self._clients: dict[bytes, KeyHolder] = {}
        for key in keys:
            if not key.key or not key.key.isascii() or not key.key.isprintable() or " " in key.key:
                raise BadKeys(f"the key of {key.name!r} must be printable ASCII without blanks, and not empty")
            if any(client.name == key.name for client in self._clients.values()):
                raise BadKeys(f"there are two keys named {key.name!r}; give every key a name of its own")
            other = self._clients.setdefault(_digest(key.key.encode()), KeyHolder(key))
            if other.name != key.name:
                raise BadKeys(f"{other.name!r} and {key.name!r} have the same key; give each its own")

    def __bool__(self) -> bool:
        return bool(self._clients)

    def find(self, presented: bytes) -> KeyHolder | None:
        """Return the client of this key, or None if no client has it. Every hash is compared, so that the time taken
        tells nothing about the keys."""
        wanted, found = _digest(presented), None
        for digest, client in self._clients.items():
            if hmac.compare_digest(wanted, digest):
                found = client
        return found


def read_keys(given: Iterable[str], file: str) -> Keyring:
    """Read the keys of `--api-key` and of the file. Raises BadKeys."""
    return Keyring([*(parse_key(one) for one in given if one), *(_read_file(Path(file)) if file else [])])


def parse_key(text: str) -> ApiKey:
    """Read `NAME=KEY`, or a bare `KEY` (which may end in `=`, as base64 does)."""
    match = NAMED.fullmatch(text)
    if match is None:
        return ApiKey(name=BARE, key=text, admin=True)
    return ApiKey(name=match[1], key=match[2], admin=match[1] == OPERATOR)


def _read_file(path: Path) -> list[ApiKey]:
    try:
        if path.stat().st_mode & stat.S_IROTH:
            raise BadKeys(f"api-keys: everybody on this machine can read {path}: chmod o-r {path}")
        content = yaml.safe_load(path.read_bytes())
    except OSError as error:
        raise BadKeys(f"api-keys: {path}: {error.strerror}") from None
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        # The error's own text is not shown, as it quotes the file.
        mark = getattr(error, "problem_mark", None)
        raise BadKeys(f"api-keys: {path} is not YAML" + (f", line {mark.line + 1}" if mark else "")) from None
    try:
        return msgspec.convert(content, list[ApiKey])
    except msgspec.ValidationError as error:
        raise BadKeys(f"api-keys: {path}: {error}") from None


def _digest(key: bytes) -> bytes:
    return hashlib.sha256(key).digest()


class Visit:
    """One request of a client while it runs, and what it uses of the client's limits. Call `end` when it is answered.
    Where `defer` was called it goes on after that, until `finish`."""

    def __init__(self, client: KeyHolder, clock: Clock) -> None:
        self.who = client.name
        self._client = client
        self._clock = clock
        self._entered = self._deferred = False
        self._reserved = self._spent = 0

    def enter(self) -> None:
        """Count one more request. Raises ApiError 429 where the key may make no more just now."""
        self._check(self._client.quota.enter(self._clock.now()))
        self._entered = True

    def reserve(self, tokens: int) -> None:
        """Reserve the most tokens that the request may use, before anything is generated. Raises ApiError 429."""
        self._check(self._client.quota.reserve(tokens, self._clock.now()))
        self._reserved = tokens

    def spend(self, tokens: int) -> None:
        """Say how many tokens the request has used; `end` gives back the rest of the reserved ones."""
        self._spent = tokens

    def end(self) -> None:
        """Give back the place and the tokens that were reserved and not used."""
        if self._entered and not self._deferred:
            self.finish()

    def defer(self) -> None:
        """Have the request go on after its answer, as work in the background does."""
        self._deferred = True

    def finish(self) -> None:
        """End a request that went on after its answer."""
        self._client.quota.leave()
        self._client.quota.settle(self._reserved, self._spent, self._clock.now())

    def headers(self) -> list[tuple[str, str]]:
        """The `x-ratelimit-` headers for the client: what is left of its limits."""
        return self._client.quota.headers(self._clock.now())

    def _check(self, over: OverLimit | None) -> None:
        if over is not None:
            raise rate_limited(_explain(self._client.name, over), over.retry_seconds)


class Guard:
    """Admits requests by their key. `is_local` says that the gateway listens on loopback only; without keys every
    client there is its operator."""

    def __init__(self, keys: Keyring, clock: Clock, is_local: bool) -> None:
        self._keys = keys
        self.with_keys = bool(keys)
        self._clock = clock
        self._is_local = is_local
        self._anybody = KeyHolder(ApiKey(name="anybody", key=""))

    def admit(self, path: str, headers: RawHeaders) -> tuple[Visit, ApiError | None]:
        """Return the visit, and the error that ends it at once: 401 for a wrong key, 403 for missing rights, 429 over a
        limit. None lets the request in."""
        visit = Visit(self._anybody, self._clock)
        try:
            visit = Visit(self._recognise(path, headers), self._clock)
            visit.enter()
        except ApiError as refusal:
            return visit, refusal
        return visit, None

    def _recognise(self, path: str, headers: RawHeaders) -> KeyHolder:
        if not path.startswith(GUARDED):
            return self._anybody
        if not self.with_keys:
            if path.startswith(ADMIN) and not (self._is_local and _is_from_here(headers)):
                raise _forbidden(
                    "Without API keys this endpoint answers only on loopback: start the gateway with --api-key."
                )
            return self._anybody
        client = self._keys.find(_presented(headers))
        if client is None:
            message = "The API key is missing or wrong: send 'Authorization: Bearer KEY', or 'x-api-key: KEY'."
            raise ApiError(401, message, code="invalid_api_key")
        if path.startswith(ADMIN) and not client.is_admin:
            raise _forbidden(f"The key {client.name!r} has no admin rights; use one that has them.")
        return client


def _presented(headers: RawHeaders) -> bytes:
    """The key that a request brings: as OpenAI's clients do, otherwise as Anthropic's."""
    scheme, _, key = headers.get(b"authorization", b"").partition(b" ")
    return key.strip() if scheme.lower() == b"bearer" else headers.get(b"x-api-key", b"").strip()


def _is_from_here(headers: RawHeaders) -> bool:
    """Whether the request was sent from this machine on purpose. A page in the operator's browser has an origin, or
    reaches the gateway under its own host name."""
    host = HOST.fullmatch(headers.get(b"host", b""))
    return b"origin" not in headers and host is not None and host[1].lower() in LOCAL


def _forbidden(message: str) -> ApiError:
    return ApiError(403, message, type="permission_error", code="insufficient_permissions")


def _explain(name: str, over: OverLimit) -> str:
    allowed = f"{over.limit} requests at once" if over.what == "concurrency" else f"{over.limit} {over.what} a minute"
    return f"Rate limit reached: the key {name!r} is allowed {allowed}."
