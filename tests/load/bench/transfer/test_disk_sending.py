"""A model reaches a receiver while it is still being read."""

import asyncio
from pathlib import Path

from livescale.load.bench.transfer.disk_model import make_disk_model
from livescale.load.bench.transfer.disk_reads import DTYPE, load_and_copy
from livescale.load.bench.transfer.disk_sending import send_while_reading
from livescale.services.host.disk import allocate
from livescale.services.host.stored import open_stored
from livescale.shared.runtime.settings import LinkSettings


def test_it_times_the_first_block_that_arrived_and_reads_the_whole_model(tmp_path: Path) -> None:
    directory = make_disk_model(tmp_path, 1)
    stored = open_stored(directory, DTYPE, keep=True)
    stored.pack(lambda _: None)
    stored.close()
    read, expected = allocate(stored.sizes), allocate(stored.sizes)
    first, last = asyncio.run(send_while_reading(directory, read, LinkSettings(transport="socket")))
    assert first > 0
    assert last > 0
    load_and_copy(directory, expected)
    assert read == expected
