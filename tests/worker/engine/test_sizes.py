"""How many bytes activations and KV take, and that the modelled engine keeps to it."""

import pytest

from livescale.services.worker.engine.modelled import ModelledRunner
from livescale.services.worker.engine.sizes import activation_bytes, block_bytes, kv_bytes, slice_bytes
from livescale.services.worker.scheduling.batch import KvSlice
from livescale.shared.simulation.virtual_time import run
from tests.clocks import LoopClock
from tests.worker.engine.made_up import BLOCK_BYTES, BLOCK_TOKENS, LATENCY, LAYERS, loaded, manifest


def test_kv_takes_whole_blocks_and_a_slice_only_its_positions() -> None:
    one = kv_bytes(manifest(), 1, 1, block_tokens=1)
    assert block_bytes(manifest(), BLOCK_TOKENS) == BLOCK_BYTES == one * BLOCK_TOKENS * LAYERS
    assert kv_bytes(manifest(), BLOCK_TOKENS + 1, LAYERS, BLOCK_TOKENS) == 2 * BLOCK_BYTES
    assert slice_bytes(manifest(), KvSlice(range(9), 3, 8, range(2))) == 5 * 2 * one


def test_an_activation_has_a_row_for_each_position() -> None:
    assert activation_bytes(manifest(), 7) == 7 * activation_bytes(manifest(), 1)


def test_a_model_whose_kv_does_not_fit_is_refused() -> None:
    async def main() -> None:
        runner = ModelledRunner(BLOCK_BYTES - 1, BLOCK_TOKENS, LATENCY, 1.0, LoopClock(0.0))
        with pytest.raises(ValueError, match=f"--kv-bytes is {BLOCK_BYTES - 1}, and .* takes {BLOCK_BYTES}; raise it"):
            await runner.load(manifest(), 4_096)

    run(main())


def test_slices_have_the_size_of_keys_and_values() -> None:
    async def main() -> None:
        runner = await loaded()
        slices = [KvSlice(range(2, 9), 3, 100, range(1, LAYERS)), KvSlice(range(9, 10), 0, 1, range(1))]
        data = await runner.export_slices(slices)
        assert data.nbytes == BLOCK_BYTES // LAYERS // BLOCK_TOKENS * (97 * (LAYERS - 1) + 1)
        await runner.import_slices(slices, data)
        with pytest.raises(ValueError, match=r"2 slices are .* bytes of KV, not 8"):
            await runner.import_slices(slices, data[:8])

    run(main())
