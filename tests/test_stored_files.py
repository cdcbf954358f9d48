"""Files that an earlier release wrote are read today.

Those in tests/stored were written before livescale was one package, on 2026-11-23. They are never made anew: a change
that does not read them breaks what users keep, and needs a new format beside the old one.
"""

import json
import mmap
import os
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import get_args

import msgspec
import pytest
import torch
from click.testing import CliRunner
from safetensors.torch import load_file

from livescale.load.bench.compare import compare, read_records
from livescale.load.trace import Arrival
from livescale.load.trace_files import read_trace
from livescale.services.host.checkpoint import open_checkpoint
from livescale.services.host.packed_file import FORMAT, MAGIC
from livescale.services.host.read_before import ReadBefore
from livescale.services.host.stored import Stored, open_stored
from livescale.services.worker.engine.engine import TorchEngine
from livescale.services.worker.engine.kv_store import allocate_kv_memory
from livescale.shared.messages.parameters import Layout, Manifest
from tests.checkpoints import tiny_checkpoint
from tests.worker.engine.models import KERNELS
from tests.worker.requests import BLOCK_TOKENS, CONTEXT, submit
from tests.worker.serving import serve

STORED = Path(__file__).with_name("stored")
LAYOUTS: tuple[Layout, ...] = get_args(Layout)
ENDINGS: dict[Layout, str] = {"plain": "", "panels": "-panels"}
TRACES: dict[str, list[tuple[float, int, int]]] = json.loads((STORED / "traces" / "rows.json").read_bytes())
RECORDS = STORED / "zigzag.jsonl"
PROMPT = tuple(range(2, 22))

needs_small_pages = pytest.mark.skipif(
    mmap.PAGESIZE != 4096, reason="packed forms are laid out in the pages of the machine that wrote them, here of 4 kB"
)


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """The checkpoint with its packed forms, and the times of change that they remember: git does not keep those."""
    directory = Path(shutil.copytree(STORED / "model", tmp_path / "model"))
    [file] = read_before(directory, "plain").files
    os.utime(directory / file.name, ns=(file.modified_ns, file.modified_ns))
    return directory


def read_before(directory: Path, layout: Layout) -> ReadBefore:
    path = directory / f"livescale-bfloat16{ENDINGS[layout]}.manifest.json"
    return msgspec.json.decode(path.read_bytes(), type=ReadBefore)


def read_blocks(stored: Stored) -> list[memoryview]:
    blocks = [memoryview(mmap.mmap(-1, size))[:size] for size in stored.sizes]
    for index, block in enumerate(blocks):
        stored.read_block(index, block)
    return blocks


def generate(manifest: Manifest, blocks: Sequence[memoryview]) -> object:
    """The tokens of one request by an engine that has these blocks."""
    engine = TorchEngine(manifest, allocate_kv_memory(1 << 22), BLOCK_TOKENS, CONTEXT, KERNELS)
    for index, block in enumerate(blocks):
        engine.add_block(index, block)
    return serve(engine, [(0, submit("a", PROMPT, max_tokens=8))]).tokens


@needs_small_pages
@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_packed_model_is_read_and_serves(model: Path, layout: Layout) -> None:
    before = read_before(model, layout)
    stored = open_stored(model, "bfloat16", layout=layout, keep=True)
    try:
        assert stored.manifest is not None
        assert stored.manifest.version == before.version
        blocks = read_blocks(stored)
        assert stored.is_packed  # or it would have been found damaged, and passed over
    finally:
        stored.close()
    fresh = open_stored(model, "bfloat16", layout=layout, keep=False)
    from_checkpoint = read_blocks(fresh)
    assert [bytes(block) for block in blocks] == [bytes(block) for block in from_checkpoint]
    assert fresh.checkpoint.manifest(before.checksums) == stored.manifest
    assert generate(stored.manifest, blocks) == generate(stored.manifest, from_checkpoint)


@needs_small_pages
def test_a_packed_model_has_the_tensors_of_its_checkpoint(model: Path) -> None:
    stored = open_stored(model, "bfloat16", keep=True)
    try:
        blocks = read_blocks(stored)
        assert stored.is_packed
    finally:
        stored.close()
    assert stored.manifest is not None
    expected = load_file(model / "model.safetensors")
    found = set()
    for block, data in zip(stored.manifest.blocks, blocks, strict=True):
        for tensor in block.tensors:
            wanted = expected[tensor.name]
            values = torch.frombuffer(data, dtype=wanted.dtype, offset=tensor.offset, count=wanted.numel())
            assert torch.equal(values.view(tensor.shape), wanted), tensor.name
            found.add(tensor.name)
    assert found == set(expected)


def test_a_packed_model_of_another_format_is_written_anew(model: Path) -> None:
    path = model / "livescale-bfloat16.packed"
    data = bytearray(path.read_bytes())
    at = len(MAGIC)
    assert int.from_bytes(data[at : at + 4], "little") == FORMAT
    data[at] = FORMAT + 1
    path.write_bytes(data)
    stored = open_stored(model, "bfloat16", keep=True)
    try:
        assert not stored.is_packed
        stored.keep(stored.manifest or pytest.fail("the version is known"), read_blocks(stored), lambda: False)
    finally:
        stored.close()
    again = open_stored(model, "bfloat16", keep=True)
    assert again.is_packed
    again.close()


@pytest.mark.parametrize("name", sorted(TRACES))
def test_a_trace_has_the_rows_that_it_had(name: str) -> None:
    assert list(read_trace(STORED / "traces" / name)) == [Arrival(*row) for row in TRACES[name]]


def test_a_record_of_a_bench_is_compared() -> None:
    lines = [json.loads(line) for line in RECORDS.read_text().splitlines()]
    cases = [line for line in lines if line["case"] != "machine"]
    found = read_records(RECORDS)
    assert [msgspec.to_builtins(record) for record in found.records.values()] == cases
    assert len(found.machines) == 1
    result = CliRunner().invoke(compare, [str(RECORDS), str(RECORDS)])
    assert result.exit_code == 0, result.output
    told = [json.loads(line) for line in result.stdout.splitlines()]
    assert [(each["case"], each["before"], each["after"]) for each in told] == [
        (case["case"], case["value"], case["value"]) for case in cases
    ]
    assert "Warning" not in result.stderr


@pytest.mark.parametrize(
    ("family", "version", "problem"),
    [
        ("gemma2", "abd2996289a0bb5934e117d9b4e0a552", "a new field of LayerKind has to be in LATER_OF_KINDS"),
        ("deepseek_v3", "4832a442050ab15b7be608ffce9ca605", "a new field of Experts has to be in LATER_OF_EXPERTS"),
    ],
)
def test_a_model_whose_layers_are_of_several_kinds_keeps_its_version(family: str, version: str, problem: str) -> None:
    checkpoint = open_checkpoint(tiny_checkpoint(family), "bfloat16")
    assert checkpoint.manifest([0] * len(checkpoint.layouts)).version == version, problem
