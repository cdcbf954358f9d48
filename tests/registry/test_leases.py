from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from livescale.services.registry.leases import LeaseMoved, Leases, LeaseTimes, SpokeFalse, SpokeStale
from livescale.shared.bus.contract import Refusal
from livescale.shared.messages.membership import Join, Member
from livescale.shared.runtime.clock import RunningTime

TIMES = LeaseTimes(suspect_seconds=1.5, dead_seconds=2.5, forget_seconds=60.0)
STEP = 0.1


def join(id: str, host: str = "box", service: str = "worker", pid: int = 1) -> Join:
    return Join(service=service, id=id, pid=pid, host=host, address=b"a")  # type: ignore[arg-type]


def states(effects: Sequence[LeaseMoved]) -> list[tuple[str, str, int]]:
    return [(effect.id, effect.state, effect.epoch) for effect in effects]


def tick(leases: Leases, start: float, end: float) -> list[tuple[float, str, str]]:
    """Tick as the registry does; (time, id, state) of what changes."""
    moves: list[tuple[float, str, str]] = []
    for step in range(round(start / STEP), round(end / STEP) + 1):
        moves += [(round(step * STEP, 1), move.id, move.state) for move in leases.tick(step * STEP)]
    return moves


def test_a_silent_member_is_suspected_then_declared_dead() -> None:
    leases = Leases(TIMES)
    leases.join(join("w"), 0.0)
    assert tick(leases, 0.0, 5.0) == [(1.5, "w", "suspect"), (2.5, "w", "dead")]
    assert not leases.is_alive("w")


def test_a_member_that_beats_stays_alive() -> None:
    leases = Leases(TIMES)
    member, _ = leases.join(join("w"), 0.0)
    for second in range(20):
        assert tick(leases, second / 2, second / 2 + 0.4) == []
        assert leases.beat("worker", "w", member.epoch, second / 2 + 0.5) == []


def test_a_suspect_that_is_heard_is_alive_again() -> None:
    leases = Leases(TIMES)
    member, _ = leases.join(join("w"), 0.0)
    tick(leases, 0.0, 2.0)
    [moved] = leases.beat("worker", "w", member.epoch, 2.0)
    assert isinstance(moved, LeaseMoved)
    assert (moved.state, moved.reason) == ("alive", "heard again")


def test_a_member_that_leaves_is_dead_at_once_but_not_by_another_s_word() -> None:
    leases = Leases(TIMES)
    first, _ = leases.join(join("w", pid=1), 0.0)
    member, _ = leases.join(join("w", pid=2), 0.1)
    assert leases.leave("worker", "w", first.epoch) == []
    assert leases.leave("router", "w", member.epoch) == []
    assert leases.leave("worker", "other", member.epoch) == []
    assert states(leases.leave("worker", "w", member.epoch)) == [("w", "dead", member.epoch)]
    assert leases.leave("worker", "w", member.epoch) == []


def test_the_dead_are_stale_until_they_join_with_a_new_epoch() -> None:
    leases = Leases(TIMES)
    first, _ = leases.join(join("w"), 0.0)
    tick(leases, 0.0, 3.0)
    assert leases.beat("worker", "w", first.epoch, 3.0) == [SpokeStale("w", first.epoch)]
    second, moves = leases.join(join("w"), 3.1)
    assert second.epoch > first.epoch
    assert states(moves) == [("w", "alive", second.epoch)]
    assert leases.beat("worker", "w", second.epoch, 3.2) == []
    assert leases.beat("worker", "w", first.epoch, 3.3) == [SpokeStale("w", first.epoch)]


def test_a_restarted_process_replaces_the_one_before_it() -> None:
    leases = Leases(TIMES)
    first, _ = leases.join(join("w", pid=1), 0.0)
    second, moves = leases.join(join("w", pid=2), 0.5)
    assert states(moves) == [("w", "dead", first.epoch), ("w", "alive", second.epoch)]


def test_a_process_that_missed_the_answer_to_its_join_has_the_same_epoch_when_it_asks_again() -> None:
    leases = Leases(TIMES)
    first, _ = leases.join(join("w", pid=1), 0.0)
    assert leases.join(join("w", pid=1), 0.2) == (first, [])
    assert states(leases.tick(1.8)) == [("w", "suspect", first.epoch)]
    again, moves = leases.join(join("w", pid=1), 2.0)
    assert (again.epoch, states(moves)) == (first.epoch, [("w", "alive", first.epoch)])
    assert leases.tick(2.9) == []
    # One that was heard knows its epoch: who asks now is another process, or has lost what it was entrusted with.
    assert leases.beat("worker", "w", first.epoch, 2.9) == []
    second, moves = leases.join(join("w", pid=1), 3.0)
    assert states(moves) == [("w", "dead", first.epoch), ("w", "alive", second.epoch)]


def test_a_process_of_the_same_pid_at_another_address_is_another_one() -> None:
    leases = Leases(TIMES)
    first, _ = leases.join(replace(join("w", pid=1), address=b"one"), 0.0)
    second, moves = leases.join(replace(join("w", pid=1), address=b"two"), 0.1)
    assert states(moves) == [("w", "dead", first.epoch), ("w", "alive", second.epoch)]


def test_a_process_that_was_replaced_does_not_take_its_id_back() -> None:
    leases = Leases(TIMES)
    for pid in (1, 2, 3):
        holder, _ = leases.join(join("w", pid=pid), 0.0)
    assert leases.beat("worker", "w", holder.epoch, 0.1) == []
    for pid in (1, 2):
        with pytest.raises(Refusal, match="is now that of pid 3: choose another with --id") as refused:
            leases.join(join("w", pid=pid), 0.1)
        assert refused.value.code == 409
    assert leases.beat("worker", "w", holder.epoch, 0.2) == []
    again, _ = leases.join(join("w", pid=3), 0.3)
    assert again.epoch > holder.epoch
    tick(leases, 0.3, 2.0)
    member, _ = leases.join(join("w", pid=1), 2.1)
    assert member.pid == 1


def test_a_process_whose_predecessor_asked_to_join_late_takes_its_id_back() -> None:
    leases = Leases(TIMES)
    second, _ = leases.join(join("w", pid=2), 0.0)
    assert leases.beat("worker", "w", second.epoch, 0.1) == []
    leases.join(join("w", pid=1), 0.2)  # it ended before it heard the answer
    assert [type(one) for one in leases.beat("worker", "w", second.epoch, 0.3)] == [SpokeStale]
    again, _ = leases.join(join("w", pid=2), 0.4)
    assert (again.pid, again.epoch > second.epoch) == (2, True)
    assert leases.beat("worker", "w", again.epoch, 0.5) == []


@pytest.mark.parametrize(
    ("second", "words"),
    [(join("w", host="elsewhere"), "alive on box"), (join("w", service="host"), "belongs to a worker")],
)
def test_an_id_in_use_is_refused_and_the_message_says_what_to_do(second: Join, words: str) -> None:
    leases = Leases(TIMES)
    leases.join(join("w"), 0.0)
    with pytest.raises(Refusal, match=words) as refused:
        leases.join(second, 0.1)
    assert refused.value.code == 409
    assert "--id" in refused.value.message


def test_an_id_is_free_elsewhere_once_its_holder_is_suspected() -> None:
    leases = Leases(TIMES)
    leases.join(join("w"), 0.0)
    tick(leases, 0.0, 1.5)
    member, _ = leases.join(join("w", host="elsewhere"), 1.6)
    assert member.host == "elsewhere"


def test_no_process_is_judged_while_the_bus_is_down_and_a_lease_time_after() -> None:
    leases = Leases(TIMES)
    leases.join(join("w"), 0.0)
    tick(leases, 0.0, 1.0)
    leases.freeze()
    assert tick(leases, 1.0, 30.0) == []
    leases.thaw(30.0)
    assert tick(leases, 30.0, 33.0) == [(31.5, "w", "suspect"), (32.5, "w", "dead")]


def test_a_registry_that_was_itself_stopped_judges_nobody_by_it() -> None:
    leases, running = Leases(TIMES), RunningTime(0.0)
    leases.join(join("w"), running.at(0.0))
    assert leases.tick(running.at(60.0)) == []
    running.tick(60.0)
    now = running.at(60.0)
    assert now <= 0.5
    # What was sent meanwhile is still unread; if nothing was, it dies as ever.
    assert tick(leases, now, 3.0) == [(1.5, "w", "suspect"), (2.5, "w", "dead")]


def test_the_dead_are_forgotten_in_the_end_and_their_epochs_never_come_again() -> None:
    leases = Leases(TIMES)
    first, _ = leases.join(join("w"), 0.0)
    tick(leases, 0.0, 61.0)
    assert leases.members() == []
    assert leases.beat("worker", "w", first.epoch, 61.0) == [SpokeStale("w", first.epoch)]
    second, _ = leases.join(join("w"), 61.0)
    assert second.epoch > first.epoch


def test_an_epoch_of_an_earlier_registry_is_never_given_out_again() -> None:
    leases = Leases(TIMES)
    assert leases.beat("worker", "w", 41, 0.0) == [SpokeStale("w", 41)]
    member, _ = leases.join(join("w"), 0.0)
    assert member.epoch == 42


def test_an_epoch_that_nobody_can_have_given_makes_no_member_stale_and_no_later_epoch_impossible() -> None:
    leases = Leases(TIMES)
    member, _ = leases.join(join("w"), 0.0)
    [false] = leases.beat("worker", "w", member.epoch + 1, 0.1)
    assert isinstance(false, SpokeFalse)
    assert "never assigned" in false.reason
    assert leases.beat("worker", "nobody", 2**53 - 1, 0.1) == [SpokeStale("nobody", 2**53 - 1)]
    assert leases.beat("worker", "w", member.epoch, 0.2) == []
    assert leases.join(join("x"), 0.3)[0].epoch == member.epoch + 1


def test_a_false_heartbeat_keeps_nobody_alive() -> None:
    leases = Leases(TIMES)
    member, _ = leases.join(join("w"), 0.0)
    for second in (0.5, 1.0, 1.5, 2.0):
        leases.beat("worker", "w", member.epoch + 5, second)
        [false] = leases.beat("gateway", "w", member.epoch, second)
        assert (type(false), false.id) == (SpokeFalse, "w")
    assert tick(leases, 0.0, 3.0)[-1] == (2.5, "w", "dead")
    assert isinstance(leases.beat("worker", "w", member.epoch + 5, 3.0)[0], SpokeFalse)


def test_a_registry_that_knows_all_epochs_of_the_one_before_believes_no_others() -> None:
    leases = Leases(TIMES)
    leases.restore([Member(service="worker", id="w", pid=1, host="box", epoch=7, lease="alive")], 0.0, 1000)
    assert leases.beat("worker", "w", 9, 0.1) == [SpokeStale("w", 9)]  # he joined again, and that was not kept
    assert leases.beat("worker", "x", 5000, 0.1) == [SpokeStale("x", 5000)]
    assert leases.last_epoch == 1000
    assert leases.beat("worker", "w", 7, 0.2) == [LeaseMoved("worker", "w", 7, "alive", "heard again")]
    assert isinstance(leases.beat("worker", "w", 9, 0.3)[0], SpokeFalse)


def test_restored_members_need_not_join_again() -> None:
    leases = Leases(TIMES)
    leases.restore([Member(service="worker", id="w", pid=1, host="box", epoch=7, lease="alive")], 0.0)
    assert leases.beat("worker", "w", 7, 0.5) == [LeaseMoved("worker", "w", 7, "alive", "heard again")]
    other, _ = leases.join(join("x"), 0.5)
    assert other.epoch == 8


def test_a_restored_member_that_is_not_heard_keeps_nobody_out() -> None:
    leases = Leases(TIMES)
    leases.restore([Member(service="worker", id="w", pid=1, host="gone", epoch=7, lease="alive")], 0.0)
    member, _ = leases.join(join("w"), 0.1)
    assert (member.host, member.epoch) == ("box", 8)


def test_members_are_listed_by_id() -> None:
    leases = Leases(TIMES)
    for id in ("b", "a"):
        leases.join(join(id), 0.0)
    assert [(member.id, member.lease, member.address) for member in leases.members()] == [
        ("a", "alive", b"a"),
        ("b", "alive", b"a"),
    ]


def test_a_registry_that_does_not_hear_itself_declares_nobody_dead() -> None:
    leases = Leases(TIMES, "registry-0")
    leases.join(join("registry-0", service="registry"), 0.0)
    leases.join(join("w"), 0.4)
    assert [leases.tick(tenth / 10) for tenth in range(100)] == [[]] * 100
    leases.beat("registry", "registry-0", 1, 10.0)
    for tenth in range(100, 140):
        leases.beat("registry", "registry-0", 1, tenth / 10)
        leases.tick(tenth / 10)
        if tenth / 10 < 9.9 + TIMES.dead_seconds:
            assert leases.is_alive("w"), "it has a whole lease time from when the registry last heard nothing"
    assert not leases.is_alive("w")


@given(
    st.lists(st.tuples(st.sampled_from(["join", "join again", "beat", "tick", "freeze", "thaw"]), st.floats(0.0, 1.2)))
)
def test_a_process_that_was_heard_within_the_suspect_time_is_never_dead(steps: list[tuple[str, float]]) -> None:
    leases, now, heard, pid, epoch, epochs = Leases(TIMES), 0.0, 0.0, 0, 0, []
    for what, seconds in steps:
        now += seconds
        match what:
            case "join" | "join again":
                pid += what == "join"
                heard, before, epoch = now, epoch, leases.join(join("w", pid=pid), now)[0].epoch
                if what == "join" or epoch != before:
                    epochs.append(epoch)
            case "beat":
                if leases.is_alive("w") and not any(
                    isinstance(e, SpokeStale) for e in leases.beat("worker", "w", epoch, now)
                ):
                    heard = now
            case "tick":
                for move in leases.tick(now):
                    assert now - heard >= TIMES.suspect_seconds
                    assert move.epoch == epoch
            case "freeze":
                leases.freeze()
            case "thaw":
                leases.thaw(now)
        leases.check_invariants()
    assert epochs == sorted(set(epochs))
