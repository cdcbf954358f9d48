"""Run random systems with a bug planted into the product: `python -m tests.load.simulate.seeds.plant NAME FIRST COUNT`.

The bug is in the text of a module as it is imported, and nowhere else. Prints the first seed that finds it: one that
breaks a rule with the bug, and none without it. Seeds that break one without it, too, are told and do not count.
"""

import subprocess
import sys
from collections.abc import Sequence
from importlib.abc import MetaPathFinder, SourceLoader
from importlib.machinery import ModuleSpec, PathFinder
from importlib.util import spec_from_loader
from pathlib import Path
from types import ModuleType

from tests.load.simulate.seeds.bugs import BUGS, Bug

ROOT = Path(__file__).parents[4]
WITHOUT = """
import sys
from livescale.load.simulate.seeds.run import played
print(len(played(int(sys.argv[1])).violations))
"""


class PlantedModule(SourceLoader):
    """Loads the module of a bug with the bug in it."""

    def __init__(self, bug: Bug) -> None:
        self._bug = bug

    def get_filename(self, fullname: str) -> str:
        return str(ROOT / self._bug.file)

    def get_data(self, path: str | bytes) -> bytes:
        return planted(self._bug).encode()


class Planter(MetaPathFinder):
    """Finds the one module that has the bug."""

    def __init__(self, bug: Bug) -> None:
        self._bug = bug
        self._module = "livescale." + bug.file.removesuffix(".py").replace("/", ".")

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname != self._module:
            return None
        assert PathFinder.find_spec(fullname, path) is not None, f"there is no {fullname}"
        return spec_from_loader(fullname, PlantedModule(self._bug))


def planted(bug: Bug) -> str:
    """The text of the bug's file with the bug in it."""
    text = (ROOT / bug.file).read_text()
    assert text.count(bug.old) == 1, f"{bug.name}: {bug.file} has its text {text.count(bug.old)} times"
    return text.replace(bug.old, bug.new)


def holds_without(seed: int) -> bool:
    """Whether the product as it is breaks no rule with this seed. It needs a process in which the bug was not imported.

    Raises CalledProcessError.
    """
    ran = subprocess.run([sys.executable, "-c", WITHOUT, str(seed)], capture_output=True, text=True, check=True)
    return int(ran.stdout) == 0


def main(name: str, first: int, count: int) -> None:
    [bug] = [one for one in BUGS if one.name == name]
    sys.meta_path.insert(0, Planter(bug))
    from livescale.load.simulate.seeds.run import played  # with the bug

    for seed in range(first, first + count):
        violations = played(seed).violations
        if not violations:
            continue
        if holds_without(seed):
            print(seed, violations[0], sep="\t", flush=True)  # noqa: T201 what the test reads
            return
        print(f"seed {seed} breaks a rule without the bug, too", file=sys.stderr, flush=True)  # noqa: T201


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
