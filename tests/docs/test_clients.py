"""The clients of `examples/` ask a running system; its configuration, topology and scenario are understood."""

import re
import shutil
from importlib.util import find_spec
from pathlib import Path

import pytest
from click.testing import CliRunner

from livescale.services.cli.main import cli
from tests.checkpoints import tiny_checkpoint
from tests.docs.conftest import Typed
from tests.docs.pages import ROOT

EXAMPLES = ROOT / "examples"


@pytest.mark.system
def test_curl_is_answered(readme: Typed) -> None:
    said = readme.shell.run(f"bash {EXAMPLES / 'curl.sh'}")
    assert "data: [DONE]" in said
    assert '"chat.completion"' in said


@pytest.mark.system
def test_the_client_of_openai_is_answered(readme: Typed) -> None:
    assert readme.shell.run(f"python {EXAMPLES / 'openai_client.py'}").strip()


@pytest.mark.system
@pytest.mark.skipif(find_spec("langchain_openai") is None, reason="langchain-openai is not installed")
def test_the_client_of_langchain_is_answered(readme: Typed) -> None:
    assert readme.shell.run(f"python {EXAMPLES / 'langchain_client.py'}").strip()


@pytest.mark.parametrize("path", sorted(EXAMPLES.glob("*.py")), ids=lambda path: path.name)
def test_a_client_can_be_parsed(path: Path) -> None:
    compile(path.read_text(), path.name, "exec")


def test_the_example_configuration_is_understood() -> None:
    result = CliRunner().invoke(cli, ["up", "--config", str(EXAMPLES / "up.yaml"), "--print-config"])
    assert result.exit_code == 0, result.output
    assert "downscale-delay-s: 10.0" in result.output


def test_the_example_topology_is_understood() -> None:
    result = CliRunner().invoke(cli, ["topology", str(EXAMPLES / "lab.yaml")])
    assert result.exit_code == 0, result.output
    assert "2 hosts, 2 GPUs" in result.output


def test_the_example_that_is_run_live_too_scales_out(tmp_path: Path) -> None:
    text = (EXAMPLES / "live.yaml").read_text()
    assert "path: /tmp/light," in text
    (tmp_path / "live.yaml").write_text(text.replace("/tmp/light", str(tiny_checkpoint("llama"))))
    shutil.copy(EXAMPLES / "lab.yaml", tmp_path)
    result = CliRunner().invoke(cli, ["simulate", str(tmp_path / "live.yaml")])
    assert result.exit_code == 0, result.output
    assert re.search(r"scales +\d out done", result.output)
