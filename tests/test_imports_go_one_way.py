"""load -> services -> shared: a service imports no other service, shared knows neither, and all are livescale's.

Nor do packages within them import each other, not even by way of a third.
"""

import ast
from functools import cache
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
FOLDERS = ("services", "shared", "load")
# What starts processes and what people type may know the services by name, not the other way round.
TOOLS = {"cli", "supervisor"}


def files(package: str) -> list[Path]:
    return sorted((ROOT / package).rglob("*.py"))


@cache
def imported(path: Path) -> frozenset[str]:
    """Names of the modules that a file imports, wherever in it."""
    names = set[str]()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            names.add(node.module or "")
    return frozenset(names)


def services() -> list[str]:
    return sorted(path.name for path in (ROOT / "services").iterdir() if (path / "__init__.py").exists())


@pytest.mark.parametrize("service", services())
def test_a_service_imports_no_other_service(service: str) -> None:
    foreign = {f"livescale.services.{other}" for other in services() if other != service}
    if service in TOOLS:
        foreign = {f"livescale.services.{other}" for other in services() if other not in TOOLS}
    for path in files(f"services/{service}"):
        for module in imported(path):
            assert ".".join(module.split(".")[:3]) not in foreign, f"{path.relative_to(ROOT)} imports {module}"


def parts(path: Path) -> set[str]:
    """Which of livescale's parts a file imports."""
    return {module.split(".")[1] for module in imported(path) if module.startswith("livescale.")}


def test_shared_imports_neither_services_nor_load() -> None:
    for path in files("shared"):
        assert not parts(path) & {"services", "load"}, path.relative_to(ROOT)


def test_services_import_load_only_where_a_command_hands_over_to_it() -> None:
    for path in files("services"):
        if path.is_relative_to(ROOT / "services" / "cli"):
            continue
        assert "load" not in parts(path), path.relative_to(ROOT)


def package_of(module: str) -> str:
    """The package that a module lies in. A package lies in itself."""
    is_package = ROOT.joinpath(*module.split(".")[1:]).is_dir()
    return module if is_package else module.rpartition(".")[0]


@pytest.mark.parametrize("depth", [2, 3, 4, 5])
def test_no_package_imports_one_that_imports_it(depth: int) -> None:
    """What lies deeper counts with the package that it is in at this depth."""

    def package(module: str) -> str:
        return ".".join(package_of(module).split(".")[:depth])

    graph: dict[str, set[str]] = {}
    for path in (path for folder in FOLDERS for path in files(folder)):
        own = package(".".join(("livescale", *path.relative_to(ROOT).with_suffix("").parts)))
        others = {package(module) for module in imported(path) if module.startswith("livescale.")}
        graph.setdefault(own, set()).update(others - {own})
    assert len(graph) > 1
    TopologicalSorter(graph).prepare()  # raises CycleError, which names the packages


def test_what_is_installed_imports_no_tests() -> None:
    for path in (path for folder in FOLDERS for path in files(folder)):
        assert "tests" not in {module.split(".")[0] for module in imported(path)}, path.relative_to(ROOT)


def test_every_import_goes_by_the_one_package() -> None:
    # `services.x` and `livescale.services.x` would be two modules, with two of every class.
    for path in (path for folder in (*FOLDERS, "tests") for path in files(folder)):
        roots = {module.split(".")[0] for module in imported(path)}
        assert not roots & set(FOLDERS), path.relative_to(ROOT)


def test_the_package_links_to_every_folder() -> None:
    assert {link.name: link.resolve() for link in (ROOT / "livescale").iterdir() if link.is_symlink()} == {
        folder: ROOT / folder for folder in FOLDERS
    }
