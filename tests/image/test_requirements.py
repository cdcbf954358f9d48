"""Dockerfiles/requirements.txt: what the image has are our dependencies and theirs, all but those of GPUs alone."""

import re
from importlib.metadata import PackageNotFoundError, requires
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[2]
EXTRAS = ("embedded", "ucx", "load")
# None of these is loaded by a process on a CPU: CUDA's libraries, its bindings, and a compiler of kernels for GPUs.
OF_GPUS = re.compile(r"nvidia-.*|cuda-.*|triton|rmm-cu13")


def listed() -> list[str]:
    lines = (ROOT / "Dockerfiles/requirements.txt").read_text().splitlines()
    return [line for line in lines if line and not line.startswith("#")]


def dependencies(name: str, extras: tuple[str, ...]) -> list[Requirement]:
    """What a package asks for on this machine, with these of its extras."""

    def wanted(one: Requirement) -> bool:
        return one.marker is None or any(one.marker.evaluate({"extra": extra}) for extra in ("", *extras))

    try:
        asked = [Requirement(line) for line in requires(name) or []]
    except PackageNotFoundError:  # for GPUs, or for another platform
        return []
    return [one for one in asked if wanted(one)]


def closure(extras: tuple[str, ...]) -> set[str]:
    """The names of all packages that ours needs, directly or by another one."""
    found, waiting = set[tuple[str, tuple[str, ...]]](), [("livescale", extras)]
    while waiting:
        package = waiting.pop()
        if package not in found and not OF_GPUS.fullmatch(package[0]):
            found.add(package)
            waiting += [(canonicalize_name(one.name), tuple(sorted(one.extras))) for one in dependencies(*package)]
    return {name for name, _ in found} - {"livescale"}


def test_the_image_has_all_that_our_packages_need_and_no_more() -> None:
    assert set(listed()) == closure(EXTRAS) - {"setuptools"}


def test_each_is_pinned_and_named_once() -> None:
    pins = {canonicalize_name(line.split("==")[0]) for line in (ROOT / "constraints.txt").read_text().splitlines()}
    assert set(listed()) <= pins
    assert listed() == sorted(set(listed()))
