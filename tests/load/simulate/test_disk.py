"""A made-up disk: its checkpoints have versions like those of real ones, and take as long to read."""

import asyncio

import pytest

from livescale.load.simulate.disk import ModelledDisk
from livescale.services.host.stored import Stored
from livescale.shared.links.contract import checksum
from livescale.shared.messages.model_spec import ModelSpec
from livescale.shared.messages.parameters import Manifest
from livescale.shared.model.checkpoint import CheckpointError
from livescale.shared.simulation.virtual_time import run
from tests.load.simulate.clusters import CONFIG

RATE = 1e6
DISK = ModelledDisk({"/models/a": CONFIG, "/models/b": CONFIG}, RATE)


async def read(stored: Stored) -> Manifest:
    blocks = await DISK.allocate(stored.sizes)
    sums = [one async for one in DISK.read(stored, dict(enumerate(blocks)))]
    assert sums == [checksum(block) for block in blocks]
    return stored.checkpoint.manifest(sums)


def test_a_model_takes_its_size_by_the_rate_to_read() -> None:
    async def main() -> None:
        stored = await DISK.open(ModelSpec(name="m", path="/models/a"))
        assert stored.manifest is None
        manifest = await read(stored)
        assert manifest.size_bytes == stored.checkpoint.size_bytes
        assert asyncio.get_running_loop().time() == pytest.approx(manifest.size_bytes / RATE)

    run(main())


def test_versions_are_those_of_the_path_and_the_form() -> None:
    async def main() -> None:
        async def version(path: str, **form: object) -> str:
            return (await read(await DISK.open(ModelSpec(name="m", path=path, **form)))).version  # type: ignore[arg-type]

        known = await version("/models/a")
        assert await version("/models/a") == known
        others = [await version("/models/b"), await version("/models/a", dtype="float32")]
        assert len({known, *others}) == 3

    run(main())


def test_a_model_that_is_not_there_or_cannot_be_cut_is_refused() -> None:
    async def main() -> None:
        with pytest.raises(CheckpointError, match=r"no such checkpoint; the simulation has /models/a, /models/b"):
            await DISK.open(ModelSpec(name="m", path="/models/c"))
        with pytest.raises(CheckpointError, match="/models/a"):
            await DISK.open(ModelSpec(name="m", path="/models/a", tensor_parallel_size=3))

    run(main())
