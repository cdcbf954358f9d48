import pytest
from msgspec.structs import replace

from services.registry.pool import Pool
from shared.bus.contract import Refusal
from shared.messages.membership import Holding, HostReport, ModelEntry, WorkerReport
from shared.messages.parameters import ModelSpec, ScalingBounds
from shared.messages.scaling import ModelChecked, ModelRead
from tests.control.fakes import BLOCKS, manifest, whole

CHECKED = ModelChecked(size_bytes=400, blocks=BLOCKS, max_model_len=512)


def spec(name: str = "m", **more: object) -> ModelSpec:
    return ModelSpec(name=name, **{"path": f"/models/{name}", **more})  # type: ignore[arg-type]


def host(id: str, *holdings: Holding, cache_bytes: int = 0) -> HostReport:
    return HostReport(id=id, epoch=1, holdings=list(holdings), cache_bytes=cache_bytes)


def worker(id: str, holding: Holding) -> WorkerReport:
    return WorkerReport(id=id, epoch=1, state="serving", model=holding.model, instance=f"i-{id}", holding=holding)


def pool_with(*names: str, read: bool = True) -> Pool:
    """Models that host h-0 has checked, and read."""
    pool = Pool()
    pool.on_host(host("h-0"))
    for name in names:
        pool.declare(spec(name), 1)
        pool.reading(name, "h-0")
        pool.checked(name, CHECKED)
        if read:
            pool.read(ModelRead(host="h-0", model=name, manifest=manifest(f"v-{name}")))
    return pool


def test_a_model_is_reading_then_ready() -> None:
    pool = pool_with("m", read=False)
    [entry] = pool.entries()
    assert (entry.state, entry.size_bytes, entry.version) == ("reading", 400, None)
    pool.read(ModelRead(host="h-0", model="m", manifest=manifest("v-1")))
    [entry] = pool.entries()
    assert (entry.state, entry.version, entry.created) == ("ready", "v-1", 1)
    assert pool.manifest("m").version == "v-1"


def test_a_model_whose_content_is_known_is_ready_while_it_is_read() -> None:
    pool = Pool()
    pool.on_host(host("h-0"))
    pool.declare(spec("m"), 1)
    pool.reading("m", "h-0")
    pool.checked("m", replace(CHECKED, manifest=manifest("v-m")))
    half = Holding(model="m", version="v-m", ready=[0], total=BLOCKS)
    pool.on_host(host("h-0", half))
    assert (pool.entry("m").state, pool.manifest("m").version) == ("ready", "v-m")
    assert (pool.holders("v-m"), pool.without_copy(), pool.to_read()) == ([], ["m"], [])
    pool.read(ModelRead(host="h-0", model="m", manifest=manifest("v-m")))
    assert (pool.holders("v-m"), pool.without_copy(), pool.to_read()) == (["h-0"], [], [])
    assert len(pool.hosts()[0].holdings) == 1


def test_a_model_that_is_not_what_it_was_is_read_again_and_has_its_new_version_then() -> None:
    pool = pool_with("m", read=False)
    pool.checked("m", replace(CHECKED, manifest=manifest("v-old")))
    pool.read(ModelRead(host="h-0", model="m", error="block 1 is not what it was"))
    [order] = pool.to_read()
    pool.reading("m", order.host)
    pool.checked("m", CHECKED)
    pool.read(ModelRead(host="h-0", model="m", manifest=manifest("v-new")))
    assert (pool.manifest("m").version, pool.entry("m").error) == ("v-new", None)


def test_a_model_that_nobody_has_checked_yet_is_not_shown() -> None:
    pool = Pool()
    pool.declare(spec(), 1)
    assert pool.entries() == []
    assert pool.without_copy() == []
    pool.withdraw("m")
    with pytest.raises(Refusal, match="not registered"):
        pool.entry("m")


def test_a_model_that_could_not_be_read_says_why_and_may_be_registered_again() -> None:
    pool = pool_with("m", read=False)
    pool.read(ModelRead(host="h-0", model="m", error="block 3 is cut short"))
    [entry] = pool.entries()
    assert (entry.state, entry.error) == ("failed", "block 3 is cut short")
    with pytest.raises(Refusal, match="block 3 is cut short") as refused:
        pool.manifest("m")
    assert refused.value.code == 503
    assert pool.declare(spec(path="/better"), 2)


def test_a_ready_model_that_cannot_be_read_again_stays_ready_says_why_and_is_still_to_be_read() -> None:
    pool = pool_with("m")
    pool.gone("h-0")
    pool.on_host(host("h-1"))
    pool.read(ModelRead(host="h-1", model="m", error="Input/output error"))
    assert [(entry.state, entry.error) for entry in pool.entries()] == [("ready", "Input/output error")]
    assert [order.spec.name for order in pool.to_read()] == ["m"]
    pool.read(ModelRead(host="h-1", model="m", manifest=manifest("v-m")))
    assert pool.entries()[0].error is None


def test_asking_for_an_unknown_manifest_names_the_models_there_are() -> None:
    with pytest.raises(Refusal, match="there are: a, b") as refused:
        pool_with("b", "a").manifest("x")
    assert refused.value.code == 404


def test_asking_for_a_manifest_that_is_being_read_says_to_come_back() -> None:
    with pytest.raises(Refusal, match="still being read") as refused:
        pool_with("m", read=False).manifest("m")
    assert refused.value.retry_after_ms is not None


def test_how_a_known_model_scales_may_be_changed() -> None:
    pool = pool_with("m")
    assert not pool.declare(spec(max_instances=3), 2)
    [entry] = pool.entries()
    assert (entry.spec.max_instances, entry.state, entry.created) == (3, "ready", 1)


@pytest.mark.parametrize(("field", "value"), [("path", "/other"), ("dtype", "float32"), ("max_model_len", 9)])
def test_what_a_known_model_is_may_not(field: str, value: object) -> None:
    pool = pool_with("m")
    with pytest.raises(Refusal, match=f"registered with {field}") as refused:
        pool.declare(spec("m", **{field: value}), 2)
    assert refused.value.code == 409


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"name": ""}, "name must"),
        ({"name": "a b"}, "name must"),
        ({"name": "a*"}, "name must"),
        ({"path": ""}, "path must"),
        ({"min_instances": -1}, "min_instances must"),
        ({"max_instances": 0}, "max_instances must"),
        ({"min_instances": 3, "max_instances": 2}, "max_instances must"),
        ({"bounds": ScalingBounds(prefill_lo=0.8)}, "prefill_lo"),
        ({"bounds": ScalingBounds(decode_hi=1.5)}, "decode_hi"),
        ({"upscale_delay_s": -1.0}, "upscale_delay_s"),
        ({"downscale_delay_s": -0.1}, "downscale_delay_s"),
        ({"downscale_to_zero_delay_s": -0.1}, "downscale_to_zero_delay_s"),
        ({"max_model_len": 0}, "max_model_len"),
    ],
)
def test_a_wrong_field_is_refused_by_name(wrong: dict[str, object], words: str) -> None:
    with pytest.raises(Refusal, match=words) as refused:
        Pool().declare(ModelSpec(**{"name": "m", "path": "/m", **wrong}), 1)  # type: ignore[arg-type]
    assert refused.value.code == 400


@pytest.mark.parametrize("name", ["llama-3.1-8b", "meta-llama/Llama-2-7b", "M_1"])
def test_names_as_on_the_hub_are_taken(name: str) -> None:
    assert Pool().declare(spec(name), 1)


def test_the_least_filled_host_reads_counting_what_it_is_reading() -> None:
    pool = Pool()
    with pytest.raises(Refusal, match="livescale run host"):
        pool.host_to_read(spec())
    pool.on_host(host("h-1", cache_bytes=500))
    pool.on_host(host("h-2", cache_bytes=200))
    assert pool.host_to_read(spec()).host == "h-2"
    pool.declare(spec("other"), 1)
    pool.reading("other", "h-2")
    pool.checked("other", CHECKED)
    assert pool.host_to_read(spec()).host == "h-1"


def test_a_host_that_has_the_model_reads_it_whatever_else_it_holds() -> None:
    pool = Pool()
    pool.on_host(host("h-1", whole("m", "v"), cache_bytes=500))
    pool.on_host(host("h-2"))
    assert pool.host_to_read(spec()).host == "h-1"


def test_holders_are_those_who_have_every_block() -> None:
    pool = pool_with("m")
    pool.on_worker(worker("w-1", whole("m", "v-m")))
    pool.on_worker(worker("w-2", Holding(model="m", version="v-m", ready=[0, 1], total=BLOCKS)))
    pool.on_worker(worker("w-3", whole("m", "other version")))
    assert pool.holders("v-m") == ["h-0", "w-1"]


def test_a_model_whose_last_copy_is_lost_is_named_and_read_again() -> None:
    pool = pool_with("m", "n")
    pool.on_host(host("h-0", whole("m", "v-m"), whole("n", "v-n")))
    pool.on_host(host("h-1"))
    pool.on_worker(worker("w-1", whole("m", "v-m")))
    assert pool.without_copy() == []
    pool.gone("h-0")
    assert pool.without_copy() == ["n"]
    [order] = pool.to_read()
    assert (order.host, order.spec.name) == ("h-1", "n")
    pool.reading("n", "h-1")
    assert pool.without_copy() == ["n"]
    assert pool.to_read() == []
    pool.read(ModelRead(host="h-1", model="n", manifest=manifest("v-n")))
    assert pool.without_copy() == []


def test_a_reader_that_dies_or_does_not_answer_is_replaced() -> None:
    pool = pool_with("m", read=False)
    assert pool.to_read() == []
    pool.gone("h-0")
    assert pool.to_read() == []
    pool.on_host(host("h-1"))
    assert [order.host for order in pool.to_read()] == ["h-1"]
    pool.reading("m", "h-1")
    pool.not_reading("m", "h-1")
    assert [order.host for order in pool.to_read()] == ["h-1"]


def test_a_reader_whose_word_may_be_lost_is_asked_again() -> None:
    pool = pool_with("m", read=False)
    pool.doubt_readers()
    assert [(order.host, order.spec.name) for order in pool.to_read()] == [("h-0", "m")]


def test_a_restored_model_is_read_again() -> None:
    pool = Pool()
    entry = ModelEntry(spec=spec(), state="ready", version="v", size_bytes=400, blocks=4, max_model_len=9, created=5)
    pool.restore(entry)
    [restored] = pool.entries()
    assert (restored.state, restored.size_bytes, restored.created) == ("reading", 400, 5)
    pool.on_host(host("h-1"))
    assert [order.spec.name for order in pool.to_read()] == ["m"]


def test_reports_are_kept_in_order_and_forgotten_with_their_sender() -> None:
    pool = pool_with("m")
    for id in ("w-2", "w-1"):
        pool.on_worker(worker(id, whole("m", "v-m")))
    assert [report.id for report in pool.workers()] == ["w-1", "w-2"]
    pool.gone("w-1")
    assert [report.id for report in pool.workers()] == ["w-2"]
    assert [report.id for report in pool.hosts()] == ["h-0"]


def test_a_model_nobody_knows_being_read_changes_nothing() -> None:
    pool = pool_with("m")
    pool.read(ModelRead(host="h-0", model="x", manifest=manifest("v")))
    assert [entry.spec.name for entry in pool.entries()] == ["m"]
