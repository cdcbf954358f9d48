import hashlib
from pathlib import Path

from click.testing import CliRunner

from livescale.load.make_model_command import make_model_command
from livescale.services.cli.main import cli
from tests.checkpoints import tiny_checkpoint


def digest(directory: Path) -> dict[str, str]:
    """A digest of the checkpoint without the packed forms that hosts keep beside it."""
    files = [file for file in directory.iterdir() if not file.name.startswith("livescale-")]
    return {file.name: hashlib.sha256(file.read_bytes()).hexdigest() for file in files}


def test_the_command_makes_a_model_and_prints_where(tmp_path: Path) -> None:
    arguments = [str(tmp_path / "made"), "--family", "qwen2", "--size", "tiny", "--seed", "7"]
    result = CliRunner().invoke(make_model_command, arguments)
    assert result.exit_code == 0
    assert result.output == f"{tmp_path / 'made'}\n"
    assert digest(tmp_path / "made") == digest(tiny_checkpoint("qwen2"))


def test_the_command_reads_its_options_from_the_environment_too(tmp_path: Path) -> None:
    environment = {"LIVESCALE_FAMILY": "qwen2", "LIVESCALE_SIZE": "tiny", "LIVESCALE_SEED": "7"}
    result = CliRunner().invoke(make_model_command, [str(tmp_path / "made")], env=environment)
    assert result.exit_code == 0
    assert digest(tmp_path / "made") == digest(tiny_checkpoint("qwen2"))


def test_a_variable_with_the_commands_name_goes_before_one_that_other_commands_read(tmp_path: Path) -> None:
    own = {"LIVESCALE_MAKE_MODEL_SIZE": "tiny", "LIVESCALE_MAKE_MODEL_SEED": "7"}
    shared = {"LIVESCALE_FAMILY": "qwen2", "LIVESCALE_SIZE": "large", "LIVESCALE_SEED": "1"}
    result = CliRunner().invoke(cli, ["make-model", str(tmp_path / "made")], env=own | shared)
    assert result.exit_code == 0
    assert digest(tmp_path / "made") == digest(tiny_checkpoint("qwen2"))


def test_the_command_refuses_without_a_traceback(tmp_path: Path) -> None:
    (tmp_path / "thesis.txt").write_text("mine")
    result = CliRunner().invoke(make_model_command, [str(tmp_path)])
    assert result.exit_code == 1
    assert result.output.startswith("Error: ")


def test_a_place_where_nothing_can_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("mine")
    result = CliRunner().invoke(make_model_command, [str(tmp_path / "file" / "m"), "--size", "tiny"])
    assert result.exit_code == 1
    assert result.output.startswith(f"Error: {tmp_path / 'file' / 'm'} cannot be written: ")
