"""The clients of `examples/` ask a running system; its configuration and topology are understood."""

from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest
from click.testing import CliRunner

from livescale.services.cli.main import cli
from tests.docs.pages import ROOT
from tests.docs.shell import Shell, free_port, terminal
from tests.made import tiny

EXAMPLES = ROOT / "examples"


@pytest.fixture(scope="module")
def shell(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shell]:
    """Where a system serves."""
    port = str(free_port())
    directory = tmp_path_factory.mktemp("clients")
    with terminal(directory, LIVESCALE_PORT=port, LIVESCALE_URL=f"http://localhost:{port}") as shell:
        shell.run(f"livescale up --model tiny={tiny('llama')} --workers 1")
        yield shell


@pytest.mark.system
def test_curl_is_answered(shell: Shell) -> None:
    said = shell.run(f"bash {EXAMPLES / 'curl.sh'}")
    assert "data: [DONE]" in said
    assert '"chat.completion"' in said


@pytest.mark.system
def test_the_client_of_openai_is_answered(shell: Shell) -> None:
    assert shell.run(f"python {EXAMPLES / 'openai_client.py'}").strip()


@pytest.mark.system
@pytest.mark.skipif(find_spec("langchain_openai") is None, reason="langchain-openai is not installed")
def test_the_client_of_langchain_is_answered(shell: Shell) -> None:
    assert shell.run(f"python {EXAMPLES / 'langchain_client.py'}").strip()


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
