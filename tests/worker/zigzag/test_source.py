"""An instance that helps targets: when it asks whom."""

from services.worker.zigzag.effects import Pull, Withdraw
from services.worker.zigzag.source import Source


def helping(*targets: str) -> Source:
    source = Source()
    for target in targets:
        assert source.help(target) == ()
    return source


def test_it_pulls_from_all_its_targets_and_only_when_nothing_of_its_own_waits() -> None:
    source = helping("t", "u")
    assert source.idle(waiting=1) == ()
    assert [effect.target for effect in source.idle(waiting=0)] == ["t", "u"]
    assert source.idle(waiting=0) == ()
    source.check_invariants()


def test_it_withdraws_from_the_others_when_one_answers_or_work_of_its_own_comes() -> None:
    source = helping("t", "u")
    source.idle(0)
    (effect,) = source.busy("t")
    assert isinstance(effect, Withdraw)
    assert effect.target == "u"
    assert source.busy("u") == ()  # it had answered before it heard
    source.idle(0)
    assert [effect.target for effect in source.busy()] == ["t", "u"]


def test_who_waits_asks_a_new_target_at_once() -> None:
    source = helping("t")
    source.idle(0)
    (effect,) = source.help("u")
    assert isinstance(effect, Pull)
    assert effect.target == "u"
    assert source.help("u") == ()


def test_who_was_released_by_all_is_an_instance_like_any_other() -> None:
    source = helping("t", "u")
    source.idle(0)
    source.leave("t")
    assert source.busy("u") == ()
    source.leave("u")
    assert not source.helps
    assert source.idle(0) == ()
    source.check_invariants()
