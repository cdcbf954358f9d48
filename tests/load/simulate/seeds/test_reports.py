"""Looks into a cluster: of which models all is in some memory."""

from livescale.load.simulate.seeds.reports import copies
from livescale.shared.messages.membership import Holding, HostReport, Report, WorkerReport


def holding(model: str, ready: int, version: str = "v", total: int = 4) -> Holding:
    return Holding(model=model, version=version, ready=list(range(ready)), total=total)


def host(id: str, *holdings: Holding) -> HostReport:
    return HostReport(id=id, epoch=1, holdings=list(holdings))


def worker(id: str, held: Holding) -> WorkerReport:
    return WorkerReport(id=id, epoch=1, state="serving", model=held.model, version=held.version, holding=held)


def found(*reports: HostReport | WorkerReport) -> set[str]:
    by_id: dict[str, Report] = {one.id: one for one in reports}
    return copies(by_id)


def test_a_host_that_has_all_blocks_has_a_copy() -> None:
    assert found(host("h", holding("whole", 4), holding("part", 3), holding("unknown", 0, total=0))) == {"whole"}


def test_a_worker_that_serves_the_whole_model_has_a_copy() -> None:
    assert found(worker("w", holding("m", 4))) == {"m"}
    assert found(worker("w", holding("m", 3))) == set()


def test_workers_with_a_shard_each_have_a_copy_together() -> None:
    shards = [worker(f"w-{rank}", holding("m", 4, f"v.{rank}of2")) for rank in range(2)]
    assert found(*shards) == {"m"}
    assert found(shards[0]) == set()
    assert found(shards[0], worker("w-3", holding("m", 4, "v.0of2"))) == set()
    assert found(shards[0], worker("w-3", holding("m", 4, "v.1of4"))) == set()
