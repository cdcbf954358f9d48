"""The base of every message on the bus."""

import msgspec


class Message(msgspec.Struct, frozen=True, tag=True):
    """A frozen record that carries its class name in the field `type`."""


class Ack(Message, frozen=True):
    """Done, nothing to add."""
