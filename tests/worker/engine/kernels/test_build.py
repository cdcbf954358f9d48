"""The sources of an extension are compiled side by side, and linked as setuptools alone would."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

BUILD = """
import sys
from setuptools import Distribution, Extension
from livescale.services.worker.engine.kernels.build import BuildSideBySide

extension = Extension("sums", sys.argv[1:])
command = BuildSideBySide(Distribution({"ext_modules": [extension]}))
command.inplace, command.build_temp = True, "objects"
command.ensure_finalized()
command.run()
import sums
print(sums.__name__)
"""
MODULE = """
#include <Python.h>
int added(int a, int b);
static struct PyModuleDef sums = {PyModuleDef_HEAD_INIT, "sums", 0, -1, 0};
PyMODINIT_FUNC PyInit_sums(void) { return added(1, 2) == 3 ? PyModule_Create(&sums) : 0; }
"""


def build(folder: Path, **sources: str) -> subprocess.CompletedProcess[str]:
    for name, text in sources.items():
        (folder / f"{name}.c").write_text(text)
    words = [sys.executable, "-c", BUILD, *(f"{name}.c" for name in sources)]
    return subprocess.run(words, cwd=folder, capture_output=True, text=True, timeout=120)


@pytest.mark.skipif(shutil.which("cc") is None, reason="no C compiler")
def test_an_extension_of_several_sources_is_built(tmp_path: Path) -> None:
    done = build(tmp_path, module=MODULE, added="int added(int a, int b) { return a + b; }")
    assert done.stdout.splitlines()[-1:] == ["sums"], done.stderr


@pytest.mark.skipif(shutil.which("cc") is None, reason="no C compiler")
def test_a_source_that_does_not_compile_fails_the_build(tmp_path: Path) -> None:
    done = build(tmp_path, module=MODULE, added="int added(int a, int b) { return a +; }")
    assert done.returncode != 0
    assert "CompileError" in done.stderr
