"""When instances of an older version are replaced, and when a removed model's are given back."""

from msgspec.structs import replace

from tests.monitor.reports import Watched, queues, serving, spare, spec


def watched(*versions: str, spares: int = 1, waiting: int = 0, **more: object) -> Watched:
    """A watched model whose instances have these versions; v is the model's own."""
    here = Watched(spec(**more))
    reports = [serving(f"w-{index}", version=version) for index, version in enumerate(versions)]
    here.hear(0.0, *reports, *(spare(f"s-{index}") for index in range(spares)), queues(waiting))
    return here


def test_another_instance_is_added_before_an_older_one_goes() -> None:
    assert watched("old").judge(0.1) == ("out", 2, "version")
    assert watched("old", "v").judge(0.1) == ("in", 1, "version")
    assert watched("v", "v").judge(0.1) == ("hold", 2, "idle")


def test_there_may_be_one_more_than_the_model_may_have() -> None:
    assert watched("old", max_instances=1).judge(0.1) == ("out", 2, "version")


def test_what_is_not_needed_goes_without_another_in_its_place() -> None:
    assert watched("old", "old", min_instances=1).judge(0.1) == ("in", 1, "version")
    assert watched("old", min_instances=0).judge(0.1) == ("in", 0, "version")


def test_load_comes_first() -> None:
    assert watched("old", spares=3, waiting=2000).judge(0.1)[::2] == ("out", "prefill")


def test_without_a_spare_worker_one_beyond_the_minimum_makes_room() -> None:
    here = watched("old", "old", spares=0, min_instances=2)
    assert here.judge(0.1) == ("hold", 2, "capacity")
    assert "no spare worker fits one more; add a worker" in here.reason(0.2)
    busy = watched("old", "old", spares=0, waiting=1000, max_instances=2)
    assert busy.judge(0.1) == ("in", 1, "version")


def test_a_removed_model_is_cleared_and_then_left_alone() -> None:
    here = watched("v", "v", min_instances=1)
    [entry] = here.signals.models()
    here.signals.on_models([replace(entry, state="removing")])
    assert here.judge(0.1) == ("in", 0, "removed")
    empty = watched()
    empty.signals.on_models([replace(entry, state="removing")])
    assert empty.judge(0.1) == ("hold", 0, "removed")
