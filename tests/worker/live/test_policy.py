"""An instance that helps targets: when it asks which target."""

from livescale.services.worker.live.policy import SourcePolicy
from livescale.services.worker.live.tasks import AskTarget, SourceEffect, StopAsking


def helping(*targets: str) -> SourcePolicy:
    """A source that helps these targets, none of which has anything as far as is known."""
    source = SourcePolicy()
    for target in targets:
        assert source.help(target) == ()
    source.idle(0)
    for target in targets:
        source.nothing(target)
    source.busy()
    source.check_invariants()
    return source


def asked(effects: tuple[SourceEffect, ...]) -> list[str]:
    """The targets to pull from; others are to be left alone."""
    return [effect.target for effect in effects if isinstance(effect, AskTarget)]


def test_it_pulls_from_all_its_targets_and_only_when_nothing_of_its_own_waits() -> None:
    source = helping("t", "u")
    assert source.idle(waiting=1) == ()
    assert asked(source.idle(waiting=0)) == ["t", "u"]
    assert source.idle(waiting=0) == ()
    source.check_invariants()


def test_targets_that_it_does_not_know_are_asked_one_after_the_other_until_none_has_anything() -> None:
    source = SourcePolicy()
    for target in "tuv":
        source.help(target)
    assert asked(source.idle(0)) == ["t"]
    effects = source.nothing("t")
    assert effects[0] == StopAsking("t", "others may have something")
    assert asked(effects) == ["u"]
    assert asked(source.nothing("u")) == ["v"]
    assert asked(source.nothing("v")) == ["t", "u"]
    assert source.nothing("t") == ()
    source.check_invariants()


def test_it_withdraws_from_the_others_when_one_answers_or_work_of_its_own_comes() -> None:
    source = helping("t", "u")
    source.idle(0)
    (effect,) = source.busy("t")
    assert isinstance(effect, StopAsking)
    assert effect.target == "u"
    assert source.busy("u") == ()  # it had answered before it heard
    source.idle(0)
    assert [effect.target for effect in source.busy()] == ["t", "u"]


def test_a_source_that_waits_asks_a_new_target_at_once() -> None:
    source = helping("t")
    source.idle(0)
    assert asked(source.help("u")) == ["u"]
    assert source.help("u") == ()


def test_targets_that_have_more_are_asked_one_at_a_time_in_turn() -> None:
    source = helping("t", "u", "v")
    source.idle(0)
    source.busy("u", more=True)
    source.busy("t", more=True)  # it had answered before it heard
    assert asked(source.idle(0)) == ["u"]
    source.busy("u", more=True)
    assert asked(source.idle(0)) == ["t"]
    source.busy("t")
    assert asked(source.idle(0)) == ["u"]
    assert asked(source.nothing("u")) == ["t", "v"]
    source.check_invariants()


def test_nothing_from_one_that_is_not_asked_any_more_changes_nothing() -> None:
    source = helping("t", "u")
    source.idle(0)
    source.busy("t")
    assert source.nothing("u") == ()
    assert asked(source.idle(0)) == ["t", "u"]


def test_one_that_leaves_while_it_alone_is_asked_has_the_others_asked() -> None:
    source = helping("t", "u")
    source.idle(0)
    source.busy("t", more=True)
    source.idle(0)
    source.leave("t")
    source.check_invariants()
    assert asked(source.idle(0)) == ["u"]


def test_a_source_that_was_released_by_all_is_an_instance_like_any_other() -> None:
    source = helping("t", "u")
    source.idle(0)
    source.leave("t")
    assert source.busy("u") == ()
    source.leave("u")
    assert not source.helps
    assert source.idle(0) == ()
    source.check_invariants()
