"""Every way to read a model from a disk brings the same bytes."""

import asyncio
from pathlib import Path

from livescale.load.bench.transfer.disk_model import make_disk_model
from livescale.load.bench.transfer.disk_reads import DTYPE, load_and_copy, read_model
from livescale.services.host.disk import allocate
from livescale.services.host.stored import open_stored


def test_every_way_reads_the_same(tmp_path: Path) -> None:
    directory = make_disk_model(tmp_path, 1)
    stored = open_stored(directory, DTYPE, keep=True)
    stored.pack(lambda _: None)
    stored.close()
    copies = [allocate(stored.sizes) for _ in range(3)]
    load_and_copy(directory, copies[0])
    asyncio.run(read_model(directory, copies[1]))
    asyncio.run(read_model(directory, copies[2], packed=False))
    assert copies[0] == copies[1] == copies[2]
