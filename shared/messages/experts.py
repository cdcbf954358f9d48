"""Layers whose MLP is many experts (Shazeer et al.)."""

from typing import Annotated

from msgspec import Meta

from livescale.shared.messages.message import Count, Message


class Experts(Message, frozen=True, kw_only=True):
    """An MLP as `count` experts of `features` features each, of which a router chooses `chosen` for each row.

    Chosen experts weigh what the router's softmax gives them; where it is `normalized`, the weights are divided by
    their sum. A rank has the `held` experts from `first` on; 0 is all of them.
    """

    count: Annotated[int, Meta(ge=1, le=65_536)]
    chosen: Annotated[int, Meta(ge=1, le=65_536)]
    features: Annotated[int, Meta(ge=1, le=2**24)]
    normalized: bool = False
    first: Count = 0
    held: Count = 0

    def __post_init__(self) -> None:
        if self.chosen > self.count or self.first + self.held > self.count:
            raise ValueError(f"`chosen` is {self.chosen}, and the last expert here {self.here.stop}, of {self.count}")

    @property
    def here(self) -> range:
        """The range of experts that this rank has."""
        return range(self.first, self.first + (self.held or self.count))
