"""The url of a NATS server: where it is, who we are there, and how it may be shown."""

import re
from urllib.parse import urlsplit

from livescale.shared.bus.contract import BusError

DEFAULT_PORT = 4222
SCHEMES = ("nats", "tls", "ws", "wss")
INBOX = "_INBOX"
USER = re.compile(r"[A-Za-z0-9_-]+")
SECRET = re.compile(r"(//(?:[^/@]*:)?)[^/@]+@")


def without_password(url: str) -> str:
    """The address as it may be shown. Raises BusError for a malformed one."""
    try:
        parts = urlsplit(url)
        port = parts.port or DEFAULT_PORT
    except ValueError:
        parts, port = urlsplit(""), 0
    if parts.scheme not in SCHEMES or not parts.hostname:
        raise BusError(f"{hide_password(url)!r} is no address of a NATS server: write nats://host:port")
    return f"{parts.scheme}://{parts.hostname}:{port}"


def hide_password(url: str) -> str:
    """The url with its password, or its token, masked."""
    return SECRET.sub(r"\1***@", url)


def inbox_prefix(url: str) -> str:
    """A user's inboxes lie below its own name, so that a server can keep others from listening there."""
    parts = urlsplit(url)
    user = parts.username or ""
    return f"{INBOX}.{user}" if parts.password and USER.fullmatch(user) else INBOX
