"""How many instances each model needs (BlitzScale 5.3). Pure.

A need has one rule a phase of inference, and the largest of them wins."""

from collections.abc import Sequence
from math import ceil

from msgspec import Struct

from livescale.services.monitor.signals import Observed
from livescale.shared.messages.model_spec import ModelSpec, ScalingBounds

SLOWEST = 1e-6  # tokens/s; less says nothing that could be divided by


class Need(Struct, frozen=True):
    """How many instances are right: with fewer than `low` a bound is exceeded, with more than `high` some are idle."""

    rule: str
    low: int
    high: int
    reason: str


class Unknown(Struct, frozen=True):
    """The need is not known: what it follows from has not been measured, or too long ago."""

    reason: str


def weigh(observed: Observed, spec: ModelSpec) -> Need | Unknown:
    """The need of a model whose instances do prefill and decode, within its configured limits."""
    if observed.current < spec.min_instances:
        least = spec.min_instances
        return Need("minimum", least, least, f"{observed.current} of at least {least} instances")
    if observed.stale is not None:
        return Unknown(observed.stale)
    rules = (need_for_prefill(observed, spec.bounds), need_for_decode(observed, spec.bounds))
    needs = [need for need in rules if isinstance(need, Need)]
    unknown = [need for need in rules if isinstance(need, Unknown)]
    if observed.current == 0 and observed.waiting_requests > 0:
        needs.insert(0, Need("from-zero", 1, 1, f"{observed.waiting_requests} requests wait and nothing serves"))
    # What is known can ask for more; only the whole can say that there is enough.
    if unknown and all(need.low <= observed.current for need in needs):
        return unknown[0]
    return _clamp(_combine(needs), spec)


def inputs_of(observed: Observed, need: Need | Unknown) -> dict[str, float | None]:
    """The numbers that a decision is made from, as they are published with it; None is unknown."""
    return {
        "instances": observed.instances,
        "loading": observed.loading,
        "coming": observed.coming,
        "leaving": observed.leaving,
        "spare_workers": observed.spare,
        "parked_workers": observed.parked,
        "waiting_tokens": observed.waiting_tokens if observed.stale is None else None,
        "waiting_requests": observed.waiting_requests if observed.stale is None else None,
        "running_requests": observed.running_requests if observed.stale is None else None,
        "kv_blocks_used": observed.kv_blocks_used if observed.stale is None else None,
        "arriving_tokens_per_second": observed.arriving_rate if observed.stale is None else None,
        "prefill_tokens_per_second": observed.prefill_rate,
        "max_requests": observed.max_requests,
        "kv_blocks_total": observed.kv_blocks,
        "needed_low": need.low if isinstance(need, Need) else None,
        "needed_high": need.high if isinstance(need, Need) else None,
    }


def need_for_prefill(observed: Observed, bounds: ScalingBounds) -> Need | Unknown:
    """The need for prefill: prompt tokens that wait, divided by the measured rate of an instance.

    Instances that it takes to keep up with the prompts that arrive are not idle, though nothing may wait for a moment:
    given back, they would be loaded again for the next prompts, and a queue would have grown meanwhile. Where prompts
    wait already, and fewer are there, the queue grows: they are needed at once.
    """
    waiting, rate = observed.waiting_tokens, observed.prefill_rate
    busy = instances_that_keep_up(observed)
    kept = f"; {busy} keep up with {observed.arriving_rate:.0f} tokens/s that arrive" if busy > 1 else ""
    if waiting == 0:
        return Need("prefill", 0, busy, f"no prompt waits{kept}")
    if rate is None or rate < SLOWEST:
        return _unmeasured(waiting)
    low, high = ceil(waiting / (bounds.prefill_hi * rate)), ceil(waiting / (bounds.prefill_lo * rate))
    reason = f"{waiting} prompt tokens wait at {rate:.0f} tokens/s an instance{kept}"
    return Need("prefill", max(low, busy), max(high, busy), reason)


def need_at_once(observed: Observed, bounds: ScalingBounds) -> Need | Unknown:
    """The need for prefill where an instance can be had at once: as many as compute what waits within `prefill_lo`.

    Nothing is kept for prompts that are still to come, as what is given back costs nothing to have again.
    """
    waiting, rate, why = observed.waiting_tokens, observed.prefill_rate, "a spare worker keeps the parameters"
    if waiting == 0:
        return Need("prefill", 0, 0, f"no prompt waits, and {why}")
    if rate is None or rate < SLOWEST:
        return _unmeasured(waiting)
    count = ceil(waiting / (bounds.prefill_lo * rate))
    return Need("prefill", count, count, f"{waiting} prompt tokens wait at {rate:.0f} tokens/s an instance, and {why}")


def _unmeasured(waiting: int) -> Unknown:
    return Unknown(f"{waiting} prompt tokens wait, and no instance has measured its prefill rate yet")


def instances_that_keep_up(observed: Observed) -> int:
    """How many instances it takes to compute prompts as fast as they arrive; 0 where this is not known."""
    arriving, rate = observed.arriving_rate, observed.prefill_rate
    return ceil(arriving / rate) if arriving and rate and rate >= SLOWEST else 0


def need_for_decode(observed: Observed, bounds: ScalingBounds) -> Need | Unknown:
    """The need for decode: KV blocks and slots that are taken, divided by what an instance has.

    A request that waits counts as a slot too, as it will want one.
    """
    requests = observed.running_requests + observed.waiting_requests
    if requests == 0 and observed.kv_blocks_used == 0:
        return Need("decode", 0, 0, "nothing runs")
    if not observed.kv_blocks or not observed.max_requests:
        return Unknown("no instance has reported yet how much KV cache and how many slots it has")
    blocks, slots = observed.kv_blocks_used / observed.kv_blocks, requests / observed.max_requests
    what, taken = ("slots", slots) if slots >= blocks else ("KV blocks", blocks)
    low, high = ceil(taken / bounds.decode_hi), ceil(taken / bounds.decode_lo)
    return Need("decode", low, high, f"{what} of {taken:.2f} instances are taken or asked for")


def wanted(need: Need) -> int:
    """The number of instances to have where there are fewer than `low`: the middle of the range."""
    return (need.low + need.high + 1) // 2


def missing(observed: Observed, need: Need | Unknown) -> int:
    """How many instances a model lacks, as far as is known."""
    return wanted(need) - observed.current if isinstance(need, Need) and observed.current < need.low else 0


def wanted_spares(observed: Observed, need: Need | Unknown, ranks: int) -> int | None:
    """How many workers a model lacks that none is there for, with so many workers an instance; None is unknown."""
    return None if isinstance(need, Unknown) else max(0, missing(observed, need) - observed.to_be_had) * ranks


def _combine(needs: Sequence[Need]) -> Need:
    """Every rule has to be satisfied; the one that asks for the most gives its name."""
    most = max(needs, key=lambda need: (need.low, need.high))
    return Need(most.rule, most.low, max(need.high for need in needs), most.reason)


def _clamp(need: Need, spec: ModelSpec) -> Need:
    """The need within the limits that the operator set."""
    low = min(max(need.low, spec.min_instances), spec.max_instances)
    high = min(max(need.high, spec.min_instances), spec.max_instances)
    return Need(need.rule, low, high, need.reason)
