"""Whether a request goes split or local with `--disaggregation auto`, by what was measured of both instances. Pure."""

from dataclasses import dataclass

from livescale.services.router.forecast import EngineSpeed, Slos
from livescale.services.router.instances import InstanceView
from livescale.shared.messages.requests import Submit


@dataclass(frozen=True)
class Way:
    """Whether another instance decodes a request, and why."""

    split: bool
    reason: str


def choose_way(
    request: Submit, prefill: InstanceView, decode: InstanceView, speed: EngineSpeed | None, slos: Slos
) -> Way:
    """Choose whether `decode` goes on with a request that `prefill` begins, or `prefill` itself does.

    It is split where the decode instance keeps the pace, or both are too slow and it is the faster one. What
    decodes at an instance that prefills is slowed down by its prompts, and slows them down.
    """
    if request.max_tokens - len(request.generated) <= 1:
        return Way(False, "its first token is its last")
    if speed is None:
        return Way(True, "how long steps take is not measured yet")
    there = speed.pause(decode.requests + 1)
    here = speed.pause(prefill.decoding + 1) + speed.beside_seconds
    told = f"{there * 1e3:.0f} ms a token there, {here * 1e3:.0f} ms here, {slos.tbt * 1e3:.0f} ms are in time"
    return Way(there <= max(slos.tbt, here), told)
