"""The pool as the registry sees it: models, their versions, and their holders."""

import pytest
from msgspec.structs import replace

from livescale.services.registry.placement import FreeCopy, MakeCopy
from livescale.services.registry.pool import KEPT_SECONDS, REMOVING_SECONDS, Pool
from livescale.shared.bus.contract import Refusal
from livescale.shared.messages.registry import ModelRead
from tests.control.fakes import manifest, whole
from tests.registry.reports import CHECKED, SIZE, host, make, orders, pool_with, read, reading, spec, worker


def test_a_model_is_reading_then_ready() -> None:
    pool = pool_with("m", is_read=False)
    [entry] = pool.entries()
    assert (entry.state, entry.size_bytes, entry.version, entry.copies) == ("reading", SIZE, None, [])
    pool.read(read("m", "v-1"))
    [entry] = pool.entries()
    assert (entry.state, entry.version, entry.created, entry.copies) == ("ready", "v-1", 1, ["h-0"])
    assert pool.manifest("m").version == "v-1"


@pytest.mark.parametrize("change", [{"path": "/right"}, {"tensor_parallel_size": 2}, {"dtype": "float32"}])
def test_what_was_read_before_a_model_was_registered_otherwise_is_not_taken_for_it(change: dict[str, object]) -> None:
    pool, old, new = pool_with("m", is_read=False), spec(), spec(**change)  # type: ignore[arg-type]
    pool.register(new, CHECKED, 2, 0.0)
    early = ModelRead(host="h-0", model="m", path=old.path, form=old.form)
    pool.read(replace(early, error="cut short"))
    pool.read(replace(early, manifest=manifest("v-old")))
    assert (pool.entry("m").state, pool.entry("m").version) == ("reading", None)
    pool.read(replace(early, path=new.path, form=new.form, manifest=manifest("v-new")))
    assert (pool.entry("m").state, pool.entry("m").version) == ("ready", "v-new")


@pytest.mark.parametrize("change", [{"path": "/new"}, {"tensor_parallel_size": 2}, {"dtype": "float32"}])
def test_a_host_that_has_copied_what_is_served_still_has_to_read_what_takes_its_place(
    change: dict[str, object],
) -> None:
    pool, old, new = pool_with("m"), spec(), spec(**change)  # type: ignore[arg-type]
    pool.register(new, CHECKED, 2, 0.0)
    assert make(pool) == ["h-0"]
    pool.read(ModelRead(host="h-0", model="m", path=old.path, form=old.form, manifest=manifest("v-m")))
    entry = pool.entry("m")
    assert (entry.version, entry.spec, entry.next) == ("v-m", old, new)
    pool.read(ModelRead(host="h-0", model="m", path=new.path, form=new.form, manifest=manifest("v-new")))
    entry = pool.entry("m")
    assert (entry.version, entry.spec, entry.next) == ("v-new", new, None)


def test_a_model_whose_content_is_known_is_ready_while_it_is_read() -> None:
    pool = Pool()
    pool.on_host(host("h-0"))
    pool.register(spec(), replace(CHECKED, manifest=manifest("v-m")), 1, 0.0)
    assert orders(pool) == [("Make", "h-0", "m", "v-m")]
    pool.on_host(host("h-0", reading("m", 0, version="v-m")))
    assert (pool.entry("m").state, pool.manifest("m").version) == ("ready", "v-m")
    assert (pool.entry("m").copies, pool.without_copy(), orders(pool)) == ([], ["m"], [])
    pool.read(read("m"))
    assert (pool.entry("m").copies, pool.without_copy(), orders(pool)) == (["h-0"], [], [])


def test_a_known_model_that_cannot_be_read_has_failed_until_it_is_whole() -> None:
    pool = Pool()
    pool.on_host(host("h-0"))
    pool.register(spec(), replace(CHECKED, manifest=manifest("v-old")), 1, 0.0)
    make(pool)
    pool.read(ModelRead(host="h-0", model="m", error="block 1 is not what it was"))
    assert (pool.entry("m").state, pool.without_copy()) == ("failed", ["m"])
    assert make(pool) == ["h-0"]
    pool.read(read("m", "v-new"))
    entry = pool.entry("m")
    assert (entry.version, entry.state, entry.error) == ("v-new", "ready", None)
    pool.gone("h-0")
    pool.on_host(host("h-0"))
    make(pool)
    pool.read(ModelRead(host="h-0", model="m", error="the disk is gone"))
    assert (pool.entry("m").state, pool.entry("m").error) == ("ready", "the disk is gone")


def test_a_model_that_could_not_be_read_says_why_is_read_again_and_may_be_registered_again() -> None:
    pool = pool_with("m", is_read=False)
    pool.read(ModelRead(host="h-0", model="m", error="block 3 is cut short"))
    [entry] = pool.entries()
    assert (entry.state, entry.error) == ("failed", "block 3 is cut short")
    with pytest.raises(Refusal, match="block 3 is cut short") as refused:
        pool.manifest("m")
    assert refused.value.code == 503
    assert orders(pool) == [("Make", "h-0", "m", "")]
    pool.register(spec(path="/better"), CHECKED, 2, 0.0)
    assert (pool.entry("m").state, pool.entry("m").spec.path) == ("reading", "/better")


def test_asking_for_an_unknown_model_names_those_there_are() -> None:
    with pytest.raises(Refusal, match="registered are: a, b") as refused:
        pool_with("b", "a").manifest("x")
    assert refused.value.code == 404


def test_asking_for_a_manifest_that_is_being_read_says_to_come_back() -> None:
    with pytest.raises(Refusal, match="still being read") as refused:
        pool_with("m", is_read=False).manifest("m")
    assert refused.value.retry_after_ms is not None


def test_how_a_known_model_scales_may_be_changed_with_or_without_a_host() -> None:
    pool = pool_with("m")
    pool.register(spec(max_instances=3), replace(CHECKED, manifest=manifest("v-m")), 2, 0.0)
    [entry] = pool.entries()
    assert (entry.spec.max_instances, entry.state, entry.created, entry.next) == (3, "ready", 1, None)
    assert pool.rescale(spec(max_instances=4))
    assert pool.entry("m").spec.max_instances == 4
    assert not pool.rescale(spec(path="/other"))
    assert not pool.rescale(spec("unknown"))


def test_a_model_that_is_being_removed_is_not_back_without_a_host() -> None:
    pool = pool_with("m")
    pool.remove("m", 10.0)
    assert not pool.rescale(spec(max_instances=4))
    assert pool.entry("m").state == "removing"


def test_instances_of_two_versions_take_requests_of_the_same_length() -> None:
    pool = pool_with("m")
    with pytest.raises(Refusal, match="registered with max_model_len None, not 9") as refused:
        pool.register(spec(max_model_len=9), CHECKED, 2, 0.0)
    assert refused.value.code == 409


def test_another_version_takes_the_place_of_the_first_once_it_is_in_memory() -> None:
    pool = pool_with("m")
    pool.register(spec(path="/new"), CHECKED, 2, 0.0)
    entry = pool.entry("m")
    assert (entry.version, entry.spec.path, entry.next) == ("v-m", "/models/m", spec(path="/new"))
    assert make(pool) == ["h-0"]
    pool.on_host(host("h-0", whole("m", "v-m"), reading("m", 0)))
    assert orders(pool) == []
    pool.read(read("m", "v-2"))
    entry = pool.entry("m")
    assert (entry.version, entry.spec.path, entry.next, entry.state) == ("v-2", "/new", None, "ready")
    assert orders(pool) == [("Free", "h-0", "m", "v-m")]


def test_a_host_that_has_the_same_content_already_and_was_not_heard_to_say_so_is_asked_again() -> None:
    pool = pool_with("m")
    pool.on_host(host("h-0", whole("m", "v-m")))
    pool.register(spec(path="/moved"), CHECKED, 2, 0.0)
    [order] = [one for one in pool.plan(0.0) if isinstance(one, MakeCopy)]
    content, _ = pool.make(order)
    pool.on_host(host("h-0", whole("m", "v-m")))
    assert orders(pool) == []  # it has not answered, and may be looking for the files
    content.begin("h-0")
    pool.on_host(host("h-0", whole("m", "v-m"), reading("m", 0)))
    assert orders(pool) == []
    pool.on_host(host("h-0", whole("m", "v-m")))
    assert make(pool) == ["h-0"]
    pool.read(read("m"))
    assert (pool.entry("m").spec.path, pool.entry("m").next, orders(pool)) == ("/moved", None, [])


def test_the_same_content_in_another_place_is_no_new_version() -> None:
    pool = pool_with("m")
    pool.register(spec(path="/moved"), CHECKED, 2, 0.0)
    assert make(pool) == ["h-0"]
    pool.read(read("m"))
    entry = pool.entry("m")
    assert (entry.version, entry.spec.path, entry.next) == ("v-m", "/moved", None)
    assert orders(pool) == []


def test_a_version_that_cannot_be_read_or_has_another_vocabulary_leaves_the_first_in_place() -> None:
    pool = pool_with("m")
    pool.register(spec(path="/broken"), CHECKED, 2, 0.0)
    make(pool)
    pool.read(ModelRead(host="h-0", model="m", error="cut short"))
    entry = pool.entry("m")
    assert (entry.version, entry.state, entry.next) == ("v-m", "ready", None)
    assert entry.error == "the new version could not be read: cut short"
    pool.register(spec(path="/other"), CHECKED, 2, 0.0)
    make(pool)
    other = manifest("v-2")
    other = replace(other, config=replace(other.config, vocab_size=9))
    pool.read(ModelRead(host="h-0", model="m", manifest=other))
    assert pool.entry("m").version == "v-m"
    assert "another vocabulary" in str(pool.entry("m").error)


def test_the_version_that_was_registered_last_is_the_one_that_is_read() -> None:
    pool = pool_with("m")
    pool.register(spec(path="/new"), CHECKED, 2, 0.0)
    pool.register(spec(path="/new", max_instances=3), CHECKED, 2, 0.0)
    assert pool.entry("m").next == spec(path="/new", max_instances=3)
    pool.register(spec(path="/newest"), CHECKED, 2, 0.0)
    assert pool.entry("m").next == spec(path="/newest")
    pool.register(spec(), replace(CHECKED, manifest=manifest("v-m")), 2, 0.0)
    assert pool.entry("m").next is None


def test_files_that_changed_behind_the_registry_s_back_are_not_served_while_anybody_has_what_was_registered() -> None:
    pool = pool_with("m")
    pool.on_worker(worker("w-0", whole("m", "v-m")))
    pool.on_host(host("h-0"))
    assert make(pool) == ["h-0"]
    pool.read(read("m", "v-edited"))
    assert pool.entry("m").version == "v-m"
    assert "have changed; register the model again" in str(pool.entry("m").error)
    pool.gone("w-0")
    pool.on_host(host("h-0"))
    assert make(pool) == ["h-0"]
    pool.read(read("m", "v-edited"))
    assert (pool.entry("m").version, pool.entry("m").error) == ("v-edited", None)


def test_an_old_version_that_is_announced_again_is_not_taken_for_the_model() -> None:
    pool = pool_with("m")
    pool.gone("h-0")
    pool.on_host(host("h-1", whole("m", "v-old")))
    pool.read(read("m", "v-old", "h-1"))
    assert (pool.entry("m").version, pool.without_copy()) == ("v-m", ["m"])
    assert orders(pool) == [("Free", "h-1", "m", "v-old"), ("Make", "h-1", "m", "v-m")]


def test_a_model_that_no_host_has_room_for_is_refused() -> None:
    pool = Pool()
    with pytest.raises(Refusal, match="livescale run host") as absent:
        pool.host_to_check("m")
    assert absent.value.code == 503
    pool.on_host(host("h-0", limit=SIZE - 1))
    with pytest.raises(Refusal, match="cache_bytes: model 'm' needs") as refused:
        pool.register(spec(), CHECKED, 1, 0.0)
    assert refused.value.code == 409
    assert pool.entries() == []


def test_a_host_that_may_know_the_files_checks_them_else_the_least_filled() -> None:
    pool = Pool()
    pool.on_host(host("h-1", whole("x", "v-x"), whole("y", "v-y")))
    pool.on_host(host("h-2", whole("z", "v-z")))
    assert pool.host_to_check("x") == "h-1"
    assert pool.host_to_check("new") == "h-2"


def test_a_reader_that_dies_does_not_answer_or_may_not_have_been_heard_is_replaced() -> None:
    pool = pool_with("m", is_read=False)
    assert orders(pool) == []
    pool.gone("h-0")
    assert orders(pool) == []
    pool.on_host(host("h-1"))
    [order] = pool.plan(0.0)
    assert isinstance(order, MakeCopy)
    pool.make(order)
    assert pool.not_made(order)
    assert not pool.not_made(order)
    assert make(pool) == ["h-1"]
    pool.doubt_host("h-1")
    assert make(pool) == ["h-1"]
    pool.doubt_readers()
    assert make(pool) == ["h-1"]
    pool.on_host(host("h-1", whole("m", "v-1")))
    assert orders(pool) == [("Make", "h-1", "m", "")]


def test_a_reader_that_was_not_heard_is_asked_again_once_its_copy_is_gone() -> None:
    pool = pool_with("m")
    pool.gone("h-0")
    pool.on_host(host("h-1"))
    assert make(pool) == ["h-1"]
    pool.on_host(host("h-1", whole("m", "v-m")))
    assert orders(pool) == []
    pool.on_host(host("h-1"))
    assert make(pool) == ["h-1"]


def test_before_its_last_instance_goes_a_host_keeps_a_model_for_a_while() -> None:
    pool = pool_with("m")
    assert pool.keep("m", 1.0) is None
    pool.on_worker(worker("w-1", whole("m", "v-m")))
    pool.holds.drop("h-0", "m", "v-m")
    assert "must first have a copy of model 'm'" in str(pool.keep("m", 1.0))
    pool.on_host(host("h-0", limit=SIZE - 1))
    assert orders(pool, 2.0) == []
    assert "needs" in str(pool.keep("m", 2.0))
    assert pool.entry("m").error is not None
    assert orders(pool, 3.0 + KEPT_SECONDS) == []
    assert pool.entry("m").error is None


def test_a_removed_model_is_forgotten_when_no_worker_has_it_and_its_copies_are_released() -> None:
    pool = pool_with("m")
    pool.on_worker(worker("w-1", whole("m", "v-m")))
    assert pool.remove("m", 10.0).state == "removing"
    assert pool.remove("m", 12.0).state == "removing"
    assert pool.keep("m", 12.0) is None
    assert orders(pool) == [("Free", "h-0", "m", "v-m")]
    assert pool.forget_removed(10.0 + REMOVING_SECONDS) == []
    with pytest.raises(Refusal, match="being removed"):
        pool.register(spec(), CHECKED, 2, 0.0)
    pool.gone("w-1")
    assert pool.forget_removed(9.0 + REMOVING_SECONDS) == []
    assert pool.forget_removed(10.0 + REMOVING_SECONDS) == ["m"]
    assert pool.entries() == []


def test_a_removed_model_may_be_registered_again_once_nothing_serves_it() -> None:
    pool = pool_with("m")
    pool.remove("m", 10.0)
    pool.register(spec(), CHECKED, 2, 10.0)
    assert (pool.entry("m").state, pool.entry("m").created) == ("reading", 2)


def test_a_restored_pool_knows_versions_and_who_holds_them_and_orders_nothing() -> None:
    before = pool_with("m", "gone")
    before.register(spec(path="/new"), CHECKED, 2, 0.0)
    before.remove("gone", 0.0)
    pool = Pool()
    for name in ("m", "gone"):
        pool.restore(before.entry(name), before.registered(name).manifest, before.next_entry(name))
    assert [(one.state, one.version) for one in pool.entries()] == [("removing", "v-gone"), ("ready", "v-m")]
    assert pool.entry("m").next == spec(path="/new")
    pool.on_host(host("h-1", whole("m", "v-m"), reading("m", 1)))
    assert pool.entry("m").copies == ["h-1"]
    assert orders(pool) == [("Make", "h-1", "m", "")]


def test_a_model_restored_without_its_manifest_is_asked_for_where_it_is() -> None:
    pool = Pool()
    pool.restore(replace(pool_with("m").entry("m"), version=None), None)
    assert pool.entry("m").state == "reading"
    pool.on_host(host("h-0"))
    pool.on_host(host("h-1", whole("m", "v-m")))
    assert orders(pool) == [("Make", "h-1", "m", "")]


def test_a_model_nobody_knows_being_read_is_released() -> None:
    pool = pool_with("m")
    pool.read(ModelRead(host="h-0", model="x", manifest=manifest("v")))
    assert [entry.spec.name for entry in pool.entries()] == ["m"]
    pool.on_host(host("h-0", whole("m", "v-m"), whole("x", "v")))
    assert pool.plan(0.0) == [FreeCopy("h-0", "x", "v", "nothing is to be served from it any more")]
