"""Scales that a bench asks for by hand."""

from livescale.load.bench.samples import BenchFailed, Disturbed
from livescale.services.cli.scale import ask_scale
from livescale.shared.bus.contract import Bus
from livescale.shared.messages.scaling import ScaleRecord
from livescale.shared.messages.transfers import LiveMode

SCALE_SECONDS = 300.0


async def scaled(bus: Bus, model: str, instances: int, live: LiveMode | None = None) -> ScaleRecord:
    """Scale to so many instances, and return the record once all is done. Raises BenchFailed where the scale fails, and
    Disturbed where there were so many already: one was lost, or came back."""
    _, record = await ask_scale(bus, model, instances, SCALE_SECONDS, live)
    if record is None:
        raise Disturbed("nothing had to be scaled: the number of instances had changed by itself")
    if record.state != "done":
        raise BenchFailed(f"the scale to {instances} failed: {record.outcome}")
    return record


async def there_and_back(bus: Bus, model: str, instances: int) -> ScaleRecord:
    """Scale from one instance to so many, and back. Returns the first scale's record. Raises as `scaled` does."""
    record = await scaled(bus, model, instances)
    await scaled(bus, model, 1)
    return record
