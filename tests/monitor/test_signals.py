"""The picture of a model, from what everybody last said."""

from services.monitor.signals import Signals
from shared.messages.membership import ModelEntry
from tests.monitor.made import SIZE, load, queues, serving, spec


def test_an_instance_where_a_request_waits_for_kv_blocks_has_none_left() -> None:
    signals = Signals(stale_seconds=2.0)
    signals.on_router(queues(), 0.0)
    signals.on_worker(serving("a", load(kv_blocks_used=70, kv_full=True)), 0.0)
    signals.on_worker(serving("b", load(kv_blocks_used=20)), 0.0)
    entry = ModelEntry(spec=spec(), state="ready", size_bytes=SIZE)
    assert signals.observe(entry, 0.0).kv_blocks_used == 100 + 20
