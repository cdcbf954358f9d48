"""API keys: who may use the gateway, and how much. Kept as hashes, found in constant time, never shown."""

import hashlib
import hmac
import re
import stat
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated

import msgspec
import yaml
from msgspec import Meta

from livescale.services.gateway.rate_limits import Limits, Quota

# A key given without a name, and this name, are the operator's.
BARE, OPERATOR = "default", "admin"
NAMED = re.compile(r"([A-Za-z][A-Za-z0-9_.-]*)=([^=].*)", re.DOTALL)

PerMinute = Annotated[int, Meta(ge=1, le=10**9)]


class BadKeys(Exception):
    """Keys that cannot be used; says which and why, never the key itself."""


class ApiKey(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, rename="kebab"):
    """One entry of the file of keys. `admin` opens /admin/v1; the limits are those of each gateway process."""

    name: Annotated[str, Meta(pattern=r"^[A-Za-z][A-Za-z0-9_.-]*$", max_length=64)]
    key: str
    admin: bool = False
    requests_per_minute: PerMinute | None = None
    tokens_per_minute: PerMinute | None = None
    max_concurrent: PerMinute | None = None

    def __repr__(self) -> str:
        return f"ApiKey(name={self.name!r})"

    @property
    def limits(self) -> Limits:
        return Limits(
            requests_per_minute=self.requests_per_minute,
            tokens_per_minute=self.tokens_per_minute,
            max_concurrent=self.max_concurrent,
        )


class Client:
    """Whoever presents a certain key."""

    def __init__(self, key: ApiKey) -> None:
        self.name = key.name
        self.is_admin = key.admin
        self.quota = Quota(key.limits)


class Keyring:
    """Who a presented key belongs to. Raises BadKeys for names or keys that are given twice, or cannot be sent."""

    def __init__(self, keys: Iterable[ApiKey]) -> None:
        self._clients: dict[bytes, Client] = {}
        for key in keys:
            if not key.key or not key.key.isascii() or not key.key.isprintable() or " " in key.key:
                raise BadKeys(f"the key of {key.name!r} must be printable ASCII without blanks, and not empty")
            if any(client.name == key.name for client in self._clients.values()):
                raise BadKeys(f"there are two keys named {key.name!r}; give every key a name of its own")
            other = self._clients.setdefault(_digest(key.key.encode()), Client(key))
            if other.name != key.name:
                raise BadKeys(f"{other.name!r} and {key.name!r} have the same key")

    def __bool__(self) -> bool:
        return bool(self._clients)

    def find(self, presented: bytes) -> Client | None:
        """Compares hashes, and always all of them: the time it takes tells nothing of the keys."""
        wanted, found = _digest(presented), None
        for digest, client in self._clients.items():
            if hmac.compare_digest(wanted, digest):
                found = client
        return found


def read_keys(given: Iterable[str], file: str) -> Keyring:
    """The keys of `--api-key` and of the file. Raises BadKeys."""
    return Keyring([*(parse_key(one) for one in given if one), *(_read_file(Path(file)) if file else [])])


def parse_key(text: str) -> ApiKey:
    """`NAME=KEY`, or a bare `KEY` (which may end in `=`, as base64 does)."""
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
        # The error's own text quotes the file.
        mark = getattr(error, "problem_mark", None)
        raise BadKeys(f"api-keys: {path} is not YAML" + (f", line {mark.line + 1}" if mark else "")) from None
    try:
        return msgspec.convert(content, list[ApiKey])
    except msgspec.ValidationError as error:
        raise BadKeys(f"api-keys: {path}: {error}") from None


def _digest(key: bytes) -> bytes:
    return hashlib.sha256(key).digest()
