"""Reports of workers and hosts, and pools that have heard them."""

from msgspec.structs import replace

from livescale.services.registry.placement import MakeCopy
from livescale.services.registry.pool import Pool
from livescale.shared.messages.membership import Holding, HostReport, WorkerReport
from livescale.shared.messages.model_spec import ModelSpec
from livescale.shared.messages.registry import ModelChecked, ModelRead
from tests.control.fakes import BLOCK_BYTES, BLOCKS, manifest

SIZE = BLOCKS * BLOCK_BYTES
CHECKED = ModelChecked(size_bytes=SIZE, blocks=BLOCKS, max_model_len=512)


def spec(name: str = "m", **more: object) -> ModelSpec:
    return ModelSpec(name=name, **{"path": f"/models/{name}", **more})  # type: ignore[arg-type]


def host(id: str, *holdings: Holding, limit: int = 100 * SIZE) -> HostReport:
    sized = [replace(one, size_bytes=SIZE) for one in holdings]
    return HostReport(id=id, epoch=1, holdings=sized, cache_limit_bytes=limit)


def worker(id: str, holding: Holding) -> WorkerReport:
    return WorkerReport(id=id, epoch=1, state="serving", model=holding.model, instance=f"i-{id}", holding=holding)


def reading(name: str, *ready: int, version: str = "") -> Holding:
    return Holding(model=name, version=version, ready=list(ready), total=BLOCKS)


def read(name: str, version: str | None = None, host: str = "h-0") -> ModelRead:
    return ModelRead(host=host, model=name, manifest=manifest(version or f"v-{name}"))


def orders(pool: Pool, now: float = 0.0) -> list[tuple[str, str, str, str]]:
    return [(type(one).__name__[:4], one.host, one.model, one.version) for one in pool.plan(now)]


def make(pool: Pool) -> list[str]:
    """Have all orders carried out, and return the hosts that were told."""
    made = [order for order in pool.plan(0.0) if isinstance(order, MakeCopy)]
    for order in made:
        pool.make(order)
    return [order.host for order in made]


def pool_with(*names: str, is_read: bool = True) -> Pool:
    """A pool with models that host h-0 was told to read, and has read."""
    pool = Pool()
    pool.on_host(host("h-0"))
    for name in names:
        pool.register(spec(name), CHECKED, 1, 0.0)
    assert make(pool) == ["h-0"] * len(names)
    for name in names if is_read else ():
        pool.read(read(name))
    return pool
