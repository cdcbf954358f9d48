"""load -> services -> shared: a service imports no other service, and shared knows neither."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
# What starts processes and what people type may know the services by name, not the other way round.
TOOLS = {"cli", "supervisor"}


def files(package: str) -> list[Path]:
    return sorted((ROOT / package).rglob("*.py"))


def imported(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            yield node.module or ""


def services() -> list[str]:
    return sorted(path.name for path in (ROOT / "services").iterdir() if (path / "__init__.py").exists())


@pytest.mark.parametrize("service", services())
def test_a_service_imports_no_other_service(service: str) -> None:
    foreign = {f"services.{other}" for other in services() if other != service}
    if service in TOOLS:
        foreign = {f"services.{other}" for other in services() if other not in TOOLS}
    for path in files(f"services/{service}"):
        for module in imported(path):
            assert ".".join(module.split(".")[:2]) not in foreign, f"{path.relative_to(ROOT)} imports {module}"


def test_shared_imports_neither_services_nor_load() -> None:
    for path in files("shared"):
        roots = {module.split(".")[0] for module in imported(path)}
        assert not roots & {"services", "load", "tests"}, path.relative_to(ROOT)


def test_services_import_load_only_where_a_command_hands_over_to_it() -> None:
    for path in files("services"):
        if path.is_relative_to(ROOT / "services" / "cli"):
            continue
        assert "load" not in {module.split(".")[0] for module in imported(path)}, path.relative_to(ROOT)
