"""Who is killed for doing nothing."""

from livescale.services.supervisor.hung import BUS_SECONDS, LATE_SECONDS, REGISTRY_SECONDS, Hung, Kill
from livescale.shared.messages.membership import LeaseState, Member

PATIENCE = 1.0
RUNNING = {"registry-0": 1, "router-0": 7, "worker-0": 8}


def member(id: str = "router-0", pid: int = 7, lease: LeaseState = "dead") -> Member:
    return Member(service="router", id=id, pid=pid, host="box", epoch=3, lease=lease)


def looks(hung: Hung, member: Member, start: float, end: float, step: float = 0.5) -> list[tuple[float, Kill]]:
    found = []
    for index in range(round((end - start) / step) + 1):
        now = start + index * step
        found += [(now, kill) for kill in hung.on_members([member], RUNNING, now)]
    return found


def test_who_is_dead_and_still_runs_is_killed_after_a_while_and_once_a_while() -> None:
    hung = Hung(PATIENCE)
    [(first, kill), (second, _)] = looks(hung, member(), 0.0, 3.0)
    assert (first, kill.name, kill.pid) == (PATIENCE, "router-0", 7)
    assert second >= first + PATIENCE


def test_who_joins_again_in_time_lives() -> None:
    hung = Hung(PATIENCE)
    assert looks(hung, member(), 0.0, 0.5) == []
    assert looks(hung, member(lease="alive"), 1.0, 1.0) == []
    assert looks(hung, member(), 1.5, 2.0) == []


def test_a_lease_that_died_with_an_earlier_process_says_nothing_of_this_one() -> None:
    assert looks(Hung(PATIENCE), member(pid=6), 0.0, 10.0) == []


def test_who_runs_elsewhere_is_not_ours_to_kill() -> None:
    assert looks(Hung(PATIENCE), member(id="worker-9"), 0.0, 10.0) == []


def test_a_suspect_is_not_killed() -> None:
    assert looks(Hung(PATIENCE), member(lease="suspect"), 0.0, 10.0) == []


def test_who_was_away_itself_looks_anew() -> None:
    hung = Hung(PATIENCE)
    assert looks(hung, member(), 0.0, 0.5) == []
    late = 0.5 + LATE_SECONDS + 1
    assert looks(hung, member(), late, late + 0.5) == []
    assert len(looks(hung, member(), late + PATIENCE, late + PATIENCE)) == 1


def test_a_registry_that_answers_nothing_is_killed() -> None:
    hung = Hung(PATIENCE)
    silent = [kill for step in range(20) for kill in hung.on_silence(RUNNING, step * 0.5)]
    assert [(kill.name, kill.pid) for kill in silent] == [("registry-0", 1)]
    assert f"{REGISTRY_SECONDS:.1f} s" in silent[0].reason


def test_a_registry_that_answers_now_and_then_lives() -> None:
    hung = Hung(PATIENCE)
    for step in range(20):
        assert hung.on_silence(RUNNING, step * 2.0) == []
        assert hung.on_silence(RUNNING, step * 2.0 + 1.0) == []
        assert hung.on_members([], RUNNING, step * 2.0 + 1.5) == []


def test_a_server_of_our_own_that_answers_nothing_is_killed_and_the_next_one_has_its_own_time() -> None:
    hung, ours = Hung(PATIENCE), {"nats": 3}
    times = [step * 2.0 for step in range(round(BUS_SECONDS / 2))]
    assert [kill for now in times for kill in hung.on_deafness(ours, now)] == []
    [kill] = hung.on_deafness(ours, BUS_SECONDS)
    assert (kill.name, kill.pid) == ("nats", 3)
    assert [kill for step in range(4) for kill in hung.on_deafness({"nats": 4}, 14.0 + 2 * step)] == []


def test_a_server_that_answers_now_and_then_or_is_not_ours_lives() -> None:
    hung = Hung(PATIENCE)
    for step in range(20):
        assert hung.on_deafness({"nats": 3}, step * 4.0) == []
        assert hung.on_deafness({"nats": 3}, step * 4.0 + 2.0) == []
        assert hung.on_members([], {"nats": 3}, step * 4.0 + 3.0) == []
    assert [kill for step in range(20) for kill in hung.on_deafness(RUNNING, 100.0 + step)] == []
