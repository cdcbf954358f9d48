"""The address of a NATS server, and how the server and this process authenticate to each other.

The url names server and user, and is not shown with its password. Files are named as NATS's own tools name them.
"""

import os
import re
import ssl
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote, urlsplit

from livescale.shared.bus.contract import BusError
from livescale.shared.runtime.settings import BusSettings

DEFAULT_PORT = 4222
SCHEMES = ("nats", "tls", "ws", "wss")
INBOX = "_INBOX"
USER = re.compile(r"[A-Za-z0-9_-]+")
SECRET = re.compile(r"(//(?:[^/@]*:)?)[^/@]+@")

CREDENTIALS = "BEGIN NATS USER JWT"


def without_password(url: str) -> str:
    """Return scheme, host and port of the url, which is safe to show. Raises BusError for a malformed url."""
    try:
        parts = urlsplit(url)
        port = parts.port or DEFAULT_PORT
    except ValueError:
        parts, port = urlsplit(""), 0
    if parts.scheme not in SCHEMES or not parts.hostname:
        raise BusError(f"{hide_password(url)!r} is not the URL of a NATS server: write nats://host:port")
    return f"{parts.scheme}://{parts.hostname}:{port}"


def hide_password(url: str) -> str:
    """The url with its password, or its token, masked."""
    return SECRET.sub(r"\1***@", url)


def inbox_prefix(url: str) -> str:
    """A user's inboxes lie below its own name, so that a server can keep others from listening there."""
    parts = urlsplit(url)
    user = parts.username or ""
    return f"{INBOX}.{user}" if parts.password and USER.fullmatch(user) else INBOX


@dataclass(frozen=True)
class NatsFiles:
    """Paths of the files that prove identities; an empty one is none. User, password and token may be part of the url
    instead of `login`."""

    login: str = ""
    creds: str = ""
    nkey: str = ""
    ca: str = ""
    cert: str = ""
    key: str = ""

    @classmethod
    def of(cls, settings: BusSettings) -> "NatsFiles":
        return cls(**{name: getattr(settings, f"nats_{name}") for name in cls.__dataclass_fields__})

    @classmethod
    def from_environment(cls, environment: Mapping[str, str]) -> "NatsFiles":
        """The files that NATS's own variables name: for commands, which take only the url as an option."""
        return cls(**{name: environment.get(f"NATS_{name.upper()}", "") for name in cls.__dataclass_fields__})

    def environment(self) -> dict[str, str]:
        """Variables that make another process use the same files, and no others."""
        return {
            f"{prefix}NATS_{name.upper()}": getattr(self, name)
            for name in self.__dataclass_fields__
            for prefix in ("", "LIVESCALE_")
        }


def with_login(url: str, login: str) -> str:
    """The url with user and password from the file `login`, which may be none. Raises BusError."""
    if not login:
        return url
    user, colon, password = _read("nats-login", login).strip().partition(":")
    if not (user and colon and password):
        raise BusError(f"nats-login: {login} holds no USER:PASSWORD (`livescale credentials` writes such files)")
    scheme, _, rest = url.partition("://")
    if "@" in rest:
        raise BusError("nats-login: the url of the NATS server names a user as well; give one of them")
    return f"{scheme}://{quote(user, safe='')}:{quote(password, safe='')}@{rest}"


def connect_options(files: NatsFiles) -> dict[str, Any]:
    """Arguments of nats-py's `connect`. Raises BusError that names the setting and the file."""
    if files.creds and files.nkey:
        raise BusError("nats-creds and nats-nkey: give only one of the two")
    options: dict[str, Any] = {}
    if files.creds:
        if CREDENTIALS not in _read("nats-creds", files.creds):
            raise BusError(
                f"nats-creds: {files.creds} is not a NATS credentials file (`nsc generate creds` writes one)"
            )
        options["user_credentials"] = files.creds
    if files.nkey:
        _check_seed(files.nkey)
        options["nkeys_seed"] = files.nkey
    if files.ca or files.cert or files.key:
        options["tls"] = _tls(files)
    return options


def _check_seed(path: str) -> None:
    import nkeys  # PyNaCl behind it takes a while to import

    try:
        nkeys.from_seed(bytearray(_read("nats-nkey", path).strip().encode())).wipe()
    except (nkeys.NkeysError, ValueError):
        raise BusError(f"nats-nkey: {path} holds no nkey seed (one line that begins with SU)") from None


def _tls(files: NatsFiles) -> ssl.SSLContext:
    if bool(files.cert) != bool(files.key):
        raise BusError("nats-cert and nats-key belong together: give both")
    for name, path in (("nats-ca", files.ca), ("nats-cert", files.cert), ("nats-key", files.key)):
        if path:
            _read(name, path)
    try:
        context = ssl.create_default_context(cafile=files.ca or None)
    except ssl.SSLError as error:
        raise BusError(f"nats-ca: {files.ca} holds no certificates in PEM: {error.reason}") from None
    if files.cert:
        try:
            context.load_cert_chain(files.cert, files.key, password="")
        except (ssl.SSLError, OSError) as error:
            raise BusError(
                f"nats-cert and nats-key: {files.cert} and {files.key} are not a certificate and its key in PEM: "
                f"{error}"
            ) from None
    return context


def _read(setting: str, path: str) -> str:
    try:
        with open(os.path.expanduser(path), encoding="utf-8", errors="replace") as file:
            return file.read()
    except OSError as error:
        raise BusError(f"{setting}: {path}: {error.strerror}") from None
