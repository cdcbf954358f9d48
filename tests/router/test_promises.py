"""Requests on their way to the worker that decodes them: counted there until they have come, or never will."""

from hypothesis import given
from hypothesis import strategies as st

from livescale.services.router.promises import Promises

WORKERS = st.sampled_from(["w-0", "w-1"])
STEPS = st.lists(st.tuples(st.sampled_from("abc"), st.none() | st.tuples(WORKERS, st.integers(0, 9))), max_size=12)


@given(STEPS)
def test_what_is_promised_to_a_worker_is_what_was_kept_and_not_dropped(
    steps: list[tuple[str, tuple[str, int] | None]],
) -> None:
    promises, promised = Promises(), dict[str, tuple[str, int]]()
    for request, kept in steps:
        if kept is None or request in promised:
            promises.drop(request)
            promised.pop(request, None)
        else:
            promises.keep(request, *kept)
            promised[request] = kept
        for worker in ("w-0", "w-1", "w-2"):
            blocks = [blocks for to, blocks in promised.values() if to == worker]
            assert (promises.requests(worker), promises.blocks(worker)) == (len(blocks), sum(blocks))
