"""One terminal in which the commands of README.md were typed: a system serves in it from then on."""

from collections.abc import Iterator
from dataclasses import dataclass

import pytest

from livescale.services.supervisor.ports import free_port
from tests.docs.pages import ROOT
from tests.docs.shell import Shell, terminal, type_page


@dataclass(frozen=True)
class Typed:
    """Commands that were typed; `said` is what they printed."""

    shell: Shell
    said: str


@pytest.fixture(scope="package")
def readme(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Typed]:
    port, directory = free_port(), tmp_path_factory.mktemp("readme")
    with terminal(directory, LIVESCALE_PORT=str(port), LIVESCALE_URL=f"http://localhost:{port}") as shell:
        yield Typed(shell, type_page(shell, ROOT / "README.md", directory, port))
