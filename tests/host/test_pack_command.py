from contextlib import closing
from pathlib import Path
from typing import get_args

import pytest
from click.testing import CliRunner

from livescale.services.host.pack_command import pack
from livescale.services.host.stored import open_stored
from livescale.shared.messages.parameters import Layout
from livescale.shared.model.automatic_form import find_form
from tests.checkpoints import copy_checkpoint


@pytest.mark.parametrize("apart", [False, True])
def test_hosts_find_what_was_packed(tmp_path: Path, apart: bool) -> None:
    directory, packed_dir = copy_checkpoint("qwen2", tmp_path), str(tmp_path / "packs") if apart else ""
    flags = ["--packed-dir", packed_dir] if apart else []
    result = CliRunner().invoke(pack, [str(directory), "--dtype", "float32", *flags])
    assert result.exit_code == 0, result.output
    packed = Path(result.stdout.strip())
    assert packed.parent == (tmp_path / "packs" if apart else directory)
    stored = open_stored(directory, "float32", keep=True, packed_dir=packed_dir)
    assert stored.is_packed
    assert packed.stat().st_size >= stored.checkpoint.size_bytes
    stored.close()


def test_what_was_packed_in_one_layout_is_not_taken_for_another(tmp_path: Path) -> None:
    directory = copy_checkpoint("qwen2", tmp_path)
    result = CliRunner().invoke(pack, [str(directory), "--layout", "panels", "--tensor-parallel-size", "2"])
    assert result.exit_code == 0, result.output
    for layout in get_args(Layout):
        with closing(open_stored(directory, "bfloat16", 2, layout, keep=True)) as stored:
            assert stored.is_packed == (layout == "panels")


def test_auto_packs_what_up_serves_on_this_machine(tmp_path: Path) -> None:
    directory = copy_checkpoint("qwen2", tmp_path)
    environment = {"LIVESCALE_DTYPE": "auto", "LIVESCALE_LAYOUT": "auto"}  # as `up` reads them too
    result = CliRunner().invoke(pack, [str(directory)], env=environment)
    assert result.exit_code == 0, result.output
    dtype, layout = find_form("auto")
    with closing(open_stored(directory, dtype, 1, layout, keep=True)) as stored:
        assert stored.is_packed


def test_what_cannot_be_packed_is_refused_in_a_line(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for arguments, words in (
        ([str(tmp_path)], "config.json"),
        ([str(tmp_path / "nothing")], "no such directory"),
        (
            [str(copy_checkpoint("qwen2", tmp_path)), "--packed-dir", str(tmp_path / "file" / "below")],
            "Not a directory",
        ),
    ):
        result = CliRunner().invoke(pack, arguments)
        assert result.exit_code == 1
        assert words in result.stderr.splitlines()[-1]
