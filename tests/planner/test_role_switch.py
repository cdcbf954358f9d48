"""A scale that only changes roles: it ends when every worker has another role, or cannot get one."""

from livescale.services.planner.fleet import ModelView
from livescale.services.planner.role_switch import LONGEST_SECONDS, RoleSwitch
from livescale.services.planner.store import ScaleStore
from livescale.shared.messages.membership import LeaseChanged
from livescale.shared.messages.scaling import RoleMove
from tests.control.fakes import manifest
from tests.planner.samples import ENTRY, VERSION, decision, snapshot, spare
from tests.planner.test_role_planner import POOL, instance, orders, scale_planner

MOVES = [
    RoleMove(worker=one, instance=f"i-{one}", epoch=1, role="decode", before="prefill", reason="why") for one in "ab"
]


def switch() -> RoleSwitch:
    return RoleSwitch("scale-1", decision("switch"), MOVES, 1.0)


def test_a_switch_is_done_once_every_worker_says_so() -> None:
    scale = switch()
    assert orders(scale.start(1.0)) == [("a", "decode"), ("b", "decode")]
    assert scale.moving == {"i-a": "decode", "i-b": "decode"}
    scale.on_report(instance("a", "decode"), 1.1)
    scale.on_report(instance("b", "prefill"), 1.1)
    assert (scale.state, scale.moving) == ("switching", {"i-b": "decode"})
    scale.on_report(instance("b", "decode"), 1.2)
    assert (scale.state, scale.record().outcome) == ("done", "2 instances have another role")
    assert scale.moving == {}


def test_a_worker_that_is_gone_refuses_or_stays_silent_fails_the_switch() -> None:
    def left(act: str) -> str:
        scale = switch()
        commands = scale.start(1.0)
        scale.on_report(instance("a", "decode"), 1.1)
        if act == "dead":
            scale.on_lease(LeaseChanged(service="worker", id="b", epoch=1, state="dead", reason="silent", at=1.0), 1.2)
        elif act == "refused":
            scale.refused(commands[1], "no", 1.2)
        elif act == "spare":
            scale.on_report(spare("b"), 1.2)
        else:
            assert scale.tick(1.0 + LONGEST_SECONDS - 0.1) == []
            assert not scale.ended
            scale.tick(1.0 + LONGEST_SECONDS)
        assert scale.state == "failed"
        return scale.record().outcome

    assert left("dead") == "b: it is gone: silent"
    assert left("refused") == "b: it did not take the role: no"
    assert left("spare") == "b: its instance is gone"
    assert left("silent") == "b: nothing was heard of it for 5 s"


def test_a_new_planner_tells_only_those_of_which_nothing_was_seen() -> None:
    first = switch()
    first.start(1.0)
    first.on_report(instance("a", "decode"), 1.1)
    planner, record = scale_planner(ScaleStore(1)), first.record()
    view = ModelView(snapshot(*POOL), ENTRY, manifest(VERSION))
    scale, commands = planner.take_over(record, view, 2.0)
    assert orders(commands) == [("b", "decode")]
    assert isinstance(scale, RoleSwitch)
    scale.on_report(instance("b", "decode"), 2.1)
    assert [phase.name for phase in scale.record().phases] == ["decided", "planned", "switched", "switched"]
    assert planner.take_over(scale.record(), view, 3.0)[0].ended
