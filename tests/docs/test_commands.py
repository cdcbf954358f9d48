"""Every command of README.md and of the tutorials runs, unless the page says why it does not."""

from collections.abc import Iterator
from pathlib import Path

import pytest

import livescale.services.gateway
from docs.tools.described import find_function
from livescale.load.machines import CannotEmulate, Network, network
from livescale.services.supervisor.ports import free_port
from tests.docs.conftest import Typed
from tests.docs.pages import DOCS, ROOT, Block, blocks
from tests.docs.shell import RUN, as_typed, terminal, type_page

TUTORIALS = DOCS / "tutorials"
TWO_MACHINES = TUTORIALS / "two-machines.md"


@pytest.mark.system
def test_the_commands_of_the_readme_run(readme: Typed) -> None:
    assert '"finish_reason"' in readme.said
    assert "by hand" in readme.said or "operator" in readme.said


@pytest.mark.system
@pytest.mark.slow
@pytest.mark.parametrize("page", sorted(set(TUTORIALS.iterdir()) - {TWO_MACHINES}), ids=lambda page: page.name)
def test_the_commands_of_a_tutorial_run(page: Path, tmp_path: Path) -> None:
    port = free_port()
    with terminal(tmp_path, LIVESCALE_PORT=str(port)) as shell:
        assert "worker-0" in type_page(shell, page, tmp_path, port)


@pytest.fixture
def machines() -> Iterator[Network]:
    try:
        with network(("one", "two"), "100mbit") as made:
            yield made
    except CannotEmulate as reason:
        pytest.skip(str(reason))


def sections(page: Path) -> dict[str, Block]:
    """Return the block of commands below each heading."""
    found = {}
    for part in page.read_text().split("\n## ")[1:]:
        heading, _, rest = part.partition("\n")
        [text] = [text.partition("\n```")[0] for text in rest.split("```bash\n")[1:]]
        found[heading] = Block(page.name, "bash", text + "\n", None)
    return found


@pytest.mark.system
@pytest.mark.slow
def test_the_commands_for_two_machines_run(machines: Network, tmp_path: Path) -> None:
    replace = {"/tmp/": f"{tmp_path}/", "10.0.0.1": machines.address("one"), "10.0.0.2": machines.address("two")}
    typed = {heading: as_typed(block, replace) for heading, block in sections(TWO_MACHINES).items()}
    with (
        terminal(tmp_path, machines.inside("one")) as first,
        terminal(tmp_path, machines.inside("two")) as second,
    ):
        for shell in (first, second):
            shell.run(typed["On both machines"])
        first.run(typed["On the first machine"])
        second.run(typed["On the second machine"])
        for id in ("gateway-0", "worker-1", "worker-2", "host-2"):
            first.run(f"until livescale status --json 2> /dev/null | grep -q {id}; do sleep 0.5; done")
        assert "worker-2" in first.run(typed["Serve"])
        for shell in (first, second):
            shell.run(f"{{ {typed['End it'].strip()}; }} || :; wait")


def test_what_does_not_run_says_why() -> None:
    pages = [ROOT / "README.md", *TUTORIALS.iterdir()]
    silent = [block for page in pages for block in blocks(page) if block.why is None and block.kind not in RUN]
    assert not silent


def test_the_example_of_keys_makes_a_file_that_is_taken_with_the_usual_umask(tmp_path: Path) -> None:
    [block] = [block for block in blocks(DOCS / "how-to" / "keys.md") if "keys.yaml <<END" in block.text]
    with terminal(tmp_path) as shell:
        shell.run("umask 022\n" + block.text[: block.text.index("livescale up")])
    keyring = find_function(livescale.services.gateway, "read_keys")([], str(tmp_path / "keys.yaml"))
    [alice, _] = [line.split("key: ")[1].split(",")[0] for line in (tmp_path / "keys.yaml").read_text().splitlines()]
    client = keyring.find(alice.encode())
    assert client is not None
    assert client.name == "alice"
