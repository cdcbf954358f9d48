"""Instances of several ranks (tensor parallelism): how they meet, and the steps that they take together.

The worker of rank 0 leads: requests are its own, and so is the choice of what runs in each step. It tells the others of
every step; what they then exchange goes through their process group.
"""

from typing import Annotated

from msgspec import Meta

from shared.messages.message import Message, Name, Positive

Port = Annotated[int, Meta(ge=0, le=65_535)]


class AskMeeting(Message, frozen=True, kw_only=True):
    """A rank -> the one that leads: where does this instance meet? Refused where it is not (any more) led there."""

    instance: Name


class Meeting(Message, frozen=True, kw_only=True):
    """Where the ranks of an instance find each other."""

    address: Name
    port: Port


class RankStep(Message, frozen=True, kw_only=True):
    """Rank 0 -> the others: run this batch. Steps count from 1, with no gap."""

    instance: Name
    step: Positive
    batch: bytes
