"""What is kept is the client's own, for a time, and not more than its share."""

from livescale.services.gateway.responses_store import ResponseStore
from livescale.shared.messages.responses import KeptResponse
from livescale.shared.runtime.clock import SystemClock
from livescale.shared.simulation.broker_state import LocalKeyValue


class Hand(SystemClock):
    """A clock that is moved by hand."""

    time = 0.0

    def now(self) -> float:
        return self.time


def kept(id: str, size_bytes: int = 10) -> KeptResponse:
    return KeptResponse(id=id, response="x" * (size_bytes - 2), conversation="[]", deadline=1.0)


def store_of(values: dict[str, bytes], clock: Hand, most_bytes: int, connected: bool = True) -> ResponseStore:
    return ResponseStore(LocalKeyValue(values, lambda: connected), clock, 60.0, most_bytes)


async def test_a_client_finds_its_own_only() -> None:
    store = store_of({}, Hand(), 100)
    assert await store.put("alice", kept("resp-1"))
    assert await store.get("alice", "resp-1") == kept("resp-1")
    assert await store.get("bob", "resp-1") is None
    await store.delete("bob", "resp-1")
    assert await store.get("alice", "resp-1") is not None
    await store.delete("alice", "resp-1")
    assert await store.get("alice", "resp-1") is None


async def test_the_oldest_give_way_and_what_is_too_large_is_not_kept() -> None:
    values: dict[str, bytes] = {}
    store = store_of(values, Hand(), 30)
    for id in ("resp-1", "resp-2", "resp-3", "resp-4"):
        assert await store.put("alice", kept(id))
    assert await store.put("bob", kept("resp-5"))
    assert [await store.get("alice", f"resp-{n}") is not None for n in (1, 2, 3, 4)] == [False, True, True, True]
    assert await store.put("alice", kept("resp-4", 20))  # what is new of it takes the place of what was
    assert [await store.get("alice", f"resp-{n}") is not None for n in (2, 3, 4)] == [False, True, True]
    assert not await store.put("alice", kept("resp-6", 31))
    assert len(values) == 3


async def test_what_is_gone_by_itself_counts_no_more() -> None:
    clock = Hand()
    store = store_of({}, clock, 30)
    assert await store.put("alice", kept("resp-1", 30))
    clock.time = 60.0
    assert await store.put("alice", kept("resp-2", 30))
    assert await store.get("alice", "resp-1") is not None  # the server drops it, not the gateway


async def test_what_the_server_does_not_take_is_not_kept() -> None:
    assert not await store_of({}, Hand(), 100, connected=False).put("alice", kept("resp-1"))
