"""Whether a worker gets KV of what is to be its own from those that have it, or computes it again (LambdaScale 4.4).
Pure."""

from dataclasses import dataclass

from livescale.shared.runtime.settings import SwitchKv


@dataclass(frozen=True)
class Way:
    """The one that is taken, and why."""

    moves: bool
    reason: str


def choose_way(asked: SwitchKv, token_bytes: int, link_rate: float | None, prefill_rate: float | None) -> Way:
    """A token's KV is `token_bytes` in the layers that others run. Rates are measured, in bytes and in tokens a second;
    what was not measured yet is not counted on."""
    if asked != "auto":
        return Way(asked == "move", f"{asked} is set")
    if link_rate is None or prefill_rate is None:
        what = "links are" if link_rate is None else "prefill is"
        return Way(False, f"it is not known yet how fast {what}")
    move, compute = token_bytes / link_rate, 1 / prefill_rate
    return Way(move < compute, f"a token takes {1e6 * move:.0f} us to be moved, {1e6 * compute:.0f} us to be computed")
