"""Checkpoints spoiled in every way: refused by the name of the file, or read exactly as the reference reads them."""

import json
import os
import resource
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from math import prod
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors import SafetensorError
from safetensors.torch import load

from livescale.services.host.checkpoint import open_checkpoint
from livescale.shared.model.block_layout import ITEM_BYTES
from livescale.shared.model.checkpoint import CheckpointError
from tests.fuzz.effort import examples
from tests.made import copy, tiny

MIB = 1 << 20
MORE_MEMORY_BYTES = 600 * MIB  # what reading a tiny checkpoint may take on top of torch and all else, at the very most
Change = Callable[[Path], object]


@contextmanager
def spoiled(family: Any) -> Iterator[Path]:
    with tempfile.TemporaryDirectory() as directory:
        target = Path(directory) / family
        shutil.copytree(tiny(family), target)
        yield target


def tensors_read(directory: Path) -> dict[str, torch.Tensor]:
    """All parameters in float32, by name. Raises CheckpointError."""
    checkpoint = open_checkpoint(directory, "float32")
    found = {}
    for index, layout in enumerate(checkpoint.layouts):
        block = bytearray(layout.size_bytes)
        checkpoint.read_block(index, memoryview(block))
        for tensor in layout.tensors:
            end = tensor.offset + prod(tensor.shape) * ITEM_BYTES["float32"]
            values = torch.frombuffer(block[tensor.offset : end], dtype=torch.float32)
            found[tensor.name] = values.view(tensor.shape)
    return found


def assert_refused_or_right(directory: Path) -> str | None:
    """The refusal, or None where the parameters are those that the safetensors package reads."""
    try:
        ours = tensors_read(directory)
    except CheckpointError as error:
        refusal = str(error)
    else:
        assert_as_the_reference(directory, ours)
        return None
    assert str(directory) in refusal
    assert len(refusal.encode()) < 5_000
    return refusal


def assert_as_the_reference(directory: Path, ours: dict[str, torch.Tensor]) -> None:
    theirs = {}
    for file in directory.glob("*.safetensors"):
        try:
            theirs.update(load(file.read_bytes()))
        except SafetensorError:
            continue  # the reference refuses holes between tensors, we do not
    for name, tensor in ours.items():
        assert name not in theirs or torch.equal(tensor, theirs[name].float()), name


@st.composite
def byte_changes(draw: st.DrawFn) -> tuple[Any, int, int, bytes]:
    """A family, a file of its, a place (early ones more often, where the headers are) and what is written there."""
    family = draw(st.sampled_from(["llama", "qwen2"]))
    file = draw(st.integers(0, 20))
    place = draw(st.one_of(st.integers(0, 16), st.integers(0, 4000), st.integers(0, 1 << 22)))
    return family, file, place, draw(st.binary(min_size=1, max_size=9))


@examples(120)
@given(byte_changes())
def test_flipped_bytes_are_refused_or_read_as_the_reference_does(change: tuple[Any, int, int, bytes]) -> None:
    family, file, place, data = change
    with spoiled(family) as directory:
        files = sorted(one for one in directory.iterdir() if one.suffix == ".safetensors" or "config" in one.name)
        chosen = files[file % len(files)]
        with chosen.open("r+b") as stream:
            stream.seek(place % chosen.stat().st_size)
            stream.write(data)
        assert_refused_or_right(directory)


@examples(120)
@given(st.sampled_from(["llama", "qwen2"]), st.integers(0, 20), st.floats(0, 1.2))
def test_files_of_any_other_length_are_refused(family: Any, file: int, share: float) -> None:
    with spoiled(family) as directory:
        files = sorted(one for one in directory.iterdir() if one.suffix == ".safetensors")
        chosen = files[file % len(files)]
        size = round(chosen.stat().st_size * share)
        if size != chosen.stat().st_size:
            os.truncate(chosen, size)
            assert str(chosen) in str(assert_refused_or_right(directory))


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.sampled_from([10**30, -1, 0, 2**63]) | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=9), inner, max_size=4),
    max_leaves=8,
)
ENTRIES = st.fixed_dictionaries(
    {
        "dtype": st.sampled_from(["F32", "BF16", "F16", "F64", "I8"]) | JSON,
        "shape": st.lists(st.integers(-2, 2**66), max_size=12) | JSON,
        "data_offsets": st.lists(st.integers(-2, 2**66), max_size=3) | JSON,
    }
)


@examples(120)
@given(st.data())
def test_any_header_is_refused_or_read_as_the_reference_does(data: st.DataObject) -> None:
    with spoiled("qwen2") as directory:
        file = directory / "model.safetensors"
        content = file.read_bytes()
        end = 8 + int.from_bytes(content[:8], "little")
        header = json.loads(content[8:end])
        name = data.draw(st.sampled_from(sorted(header)) | st.text(max_size=300))
        other = data.draw(st.sampled_from(sorted(set(header) - {"__metadata__"})))
        header[name] = data.draw(st.one_of(ENTRIES, JSON, st.just(header[other])))
        packed = json.dumps(header, ensure_ascii=data.draw(st.booleans())).encode("utf-8", "surrogatepass")
        file.write_bytes(len(packed).to_bytes(8, "little") + packed + content[end:])
        assert_refused_or_right(directory)


@examples(120)
@given(st.data())
def test_any_configuration_is_refused_or_read(data: st.DataObject) -> None:
    with spoiled("llama") as directory:
        config = json.loads((directory / "config.json").read_text())
        field = data.draw(st.sampled_from([*sorted(config), "rope_scaling", "head_dim", "num_key_value_heads"]))
        config[field] = data.draw(JSON | st.integers(1, 2**40) | st.dictionaries(st.just("rope_type"), JSON))
        (directory / "config.json").write_text(json.dumps(config), encoding="utf-8", errors="surrogatepass")
        assert_refused_or_right(directory)


@examples(120)
@given(st.text(max_size=40) | st.sampled_from(["../x.safetensors", "/etc/passwd", "..", "", "a\0.safetensors"]))
def test_any_name_in_the_index_is_refused_or_beside_it(name: str) -> None:
    with spoiled("llama") as directory:
        path = directory / "model.safetensors.index.json"
        index = json.loads(path.read_text())
        index["weight_map"]["model.norm.weight"] = name
        path.write_text(json.dumps(index), encoding="utf-8")
        assert assert_refused_or_right(directory) is not None


def with_header(file: Path, header: bytes, size: int | None = None) -> None:
    file.write_bytes((len(header) if size is None else size).to_bytes(8, "little") + header)


NESTED = b'{"a":' + b"[" * 200_000
HOSTILE: dict[str, Change] = {
    "a header of 2^63 bytes": lambda d: with_header(d / "model.safetensors", b"{}", 2**63),
    "a header of almost all memory": lambda d: with_header(d / "model.safetensors", b"{}", 2**40),
    "a header longer than any": lambda d: with_header(d / "model.safetensors", b" " * (17 * MIB)),
    "a header of a million names": lambda d: with_header(
        d / "model.safetensors", b"{" + b",".join(b'"%d":0' % i for i in range(1_000_000)) + b"}"
    ),
    "a header nested without end": lambda d: with_header(d / "model.safetensors", NESTED),
    "a configuration nested without end": lambda d: (d / "config.json").write_bytes(NESTED),
    "an unknown field nested without end": lambda d: (d / "config.json").write_bytes(
        b'{"model_type":"x",' + NESTED[1:]
    ),
    "an index nested without end": lambda d: (d / "model.safetensors.index.json").write_bytes(NESTED),
    "an index of a gigabyte": lambda d: sparse(d / "model.safetensors.index.json", 1 << 30),
    "a configuration of a gigabyte": lambda d: sparse(d / "config.json", 1 << 30),
    "a configuration that is a pipe": lambda d: piped(d / "config.json"),
    "parameters that are a pipe": lambda d: piped(d / "model.safetensors"),
    "a configuration that never ends": lambda d: linked(d / "config.json", "/dev/zero"),
    "parameters that never end": lambda d: linked(d / "model.safetensors", "/dev/zero"),
    "parameters that are a directory": lambda d: replaced_by_a_directory(d / "model.safetensors"),
    "a link that leads nowhere": lambda d: linked(d / "model.safetensors", "nowhere"),
    "a link to itself": lambda d: linked(d / "model.safetensors", "model.safetensors"),
    "a link to another file of the machine": lambda d: linked(d / "model.safetensors", "/etc/hostname"),
    "a tensor that comes twice": lambda d: repeat_a_tensor(d / "model.safetensors"),
    "a billion layers": lambda d: configure(d, num_hidden_layers=10**9),
    "a vocabulary without end": lambda d: configure(d, vocab_size=10**30),
}


def sparse(path: Path, size: int) -> None:
    with path.open("wb") as file:
        file.truncate(size)


def replaced_by_a_directory(path: Path) -> None:
    path.unlink()
    path.mkdir()


def piped(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


def linked(path: Path, target: str) -> None:
    path.unlink()
    path.symlink_to(target)


def configure(directory: Path, **fields: object) -> None:
    path = directory / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | fields))


def repeat_a_tensor(file: Path) -> None:
    content = file.read_bytes()
    end = 8 + int.from_bytes(content[:8], "little")
    header = json.loads(content[8:end])
    name = "model.norm.weight"
    packed = content[8:end].rstrip()[:-1] + f', "{name}": {json.dumps(header[name])}}}'.encode()
    file.write_bytes(len(packed).to_bytes(8, "little") + packed + content[end:])


@pytest.mark.parametrize("what", HOSTILE)
def test_hostile_files_are_refused_without_waiting_and_without_much_memory(tmp_path: Path, what: str) -> None:
    directory = copy("qwen2", tmp_path)
    HOSTILE[what](directory)
    with limited_memory():
        assert assert_refused_or_right(directory) is not None


@contextmanager
def limited_memory() -> Iterator[None]:
    before = resource.getrlimit(resource.RLIMIT_AS)
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + MORE_MEMORY_BYTES, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, before)


def test_a_link_out_of_the_directory_is_followed_as_the_hubs_cache_needs_it(tmp_path: Path) -> None:
    directory = copy("qwen2", tmp_path)
    blob = tmp_path / "blob"
    (directory / "model.safetensors").rename(blob)
    (directory / "model.safetensors").symlink_to("../blob")
    assert assert_refused_or_right(directory) is None
