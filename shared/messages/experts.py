"""Layers whose MLP is many experts (Shazeer et al.)."""

from typing import Annotated

from msgspec import Meta

from livescale.shared.messages.message import Amount, Count, Message


class Experts(Message, frozen=True, kw_only=True):
    """An MLP as `count` experts of `features` features each, of which a router chooses `chosen` for each row.

    Chosen experts weigh what the router's softmax gives them; where it is `normalized`, the weights are divided by
    their sum. A rank has the `held` experts from `first` on; 0 is all of them. Where they are `biased`, the router and
    all matrices of experts have biases. With a `swiglu_limit` gate and up are clamped, and the activation is gate *
    sigmoid(swiglu_alpha * gate) * (up + 1).
    """

    count: Annotated[int, Meta(ge=1, le=65_536)]
    chosen: Annotated[int, Meta(ge=1, le=65_536)]
    features: Annotated[int, Meta(ge=1, le=2**24)]
    normalized: bool = False
    first: Count = 0
    held: Count = 0
    biased: bool = False
    swiglu_alpha: Annotated[float, Meta(gt=0, le=1e3)] = 1.702
    swiglu_limit: Amount = 0.0

    def __post_init__(self) -> None:
        if self.chosen > self.count or self.first + self.held > self.count:
            raise ValueError(f"`chosen` is {self.chosen}, and the last expert here {self.here.stop}, of {self.count}")

    @property
    def cut_inside(self) -> bool:
        """Whether each rank that does not have all experts has a part of each one."""
        return self.held == 0

    @property
    def here(self) -> range:
        """The range of experts that this rank has."""
        return range(self.first, self.first + (self.held or self.count))
