"""Nothing that reads input can run what it reads: no pickle in any of its forms, no eval, no unsafe YAML."""

import ast
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
FILES = sorted(path for top in ("services", "shared", "load") for path in (ROOT / top).rglob("*.py"))
MODULES = {"pickle", "_pickle", "cPickle", "dill", "cloudpickle", "joblib", "marshal", "shelve", "jsonpickle"}
# The rest of multiprocessing (queues, pools, managers, shared objects) pickles whatever passes through it.
ALLOWED_OF_MULTIPROCESSING = {
    "multiprocessing.Pipe",
    "multiprocessing.connection",
    "multiprocessing.connection.Connection",
}
CALLS = {
    *("eval", "exec", "compile", "__import__"),
    *("torch.load", "torch.save", "yaml.load", "yaml.load_all", "yaml.unsafe_load", "yaml.full_load", "yaml.dump"),
    *("np.save", "numpy.save", "pd.read_pickle", "os.system", "os.popen"),
}


def imports(nodes: Iterable[ast.AST]) -> Iterator[str]:
    for node in nodes:
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module is not None:
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def dangers(source: str) -> list[str]:
    nodes = list(ast.walk(ast.parse(source)))
    imported = list(imports(nodes))
    found = [name for name in imported if name.split(".")[0] in MODULES]
    of_multiprocessing = [name for name in imported if name.startswith("multiprocessing.")]
    found += [name for name in of_multiprocessing if name not in ALLOWED_OF_MULTIPROCESSING]
    for call in (node for node in nodes if isinstance(node, ast.Call)):
        if (name := dotted(call.func)) in CALLS:
            found.append(name)
        # A multiprocessing Connection's `recv()` unpickles; a socket's takes a size.
        if of_multiprocessing and isinstance(call.func, ast.Attribute) and call.func.attr in ("recv", "send"):
            found.append(name)
        found += [name for keyword in call.keywords if keyword.arg == "allow_pickle" and _is_on(keyword.value)]
        found += [name for keyword in call.keywords if keyword.arg == "shell" and _is_on(keyword.value)]
    # Handed on without a call, as to a thread.
    if of_multiprocessing:
        found += [dotted(node) for node in nodes if isinstance(node, ast.Attribute) and node.attr == "recv"]
    return found


def dotted(node: ast.expr) -> str:
    """A name as it is written, `torch.load`; of anything else the attributes that follow it, `.recv`."""
    if isinstance(node, ast.Attribute):
        return f"{dotted(node.value)}.{node.attr}"
    return node.id if isinstance(node, ast.Name) else ""


def _is_on(value: ast.expr) -> bool:
    return not (isinstance(value, ast.Constant) and value.value is False)


def test_every_file_reads_input_as_data_alone() -> None:
    assert len(FILES) > 100
    found = {str(path.relative_to(ROOT)): dangers(path.read_text()) for path in FILES}
    assert {path: calls for path, calls in found.items() if calls} == {}


@pytest.mark.parametrize(
    "source",
    [
        "import pickle",
        "from marshal import loads",
        "def f():\n    import shelve",
        "import torch\ntorch.load(p)",
        "import yaml\nyaml.load(t, Loader=yaml.Loader)",
        "eval('1')",
        "from multiprocessing import Queue",
        "from multiprocessing.connection import Connection\nConnection(1).recv()",
        "from multiprocessing.connection import Connection\nasyncio.to_thread(pipe.recv)",
        "np.load(p, allow_pickle=True)",
        "subprocess.run(c, shell=True)",
    ],
)
def test_the_check_sees(source: str) -> None:
    assert dangers(source)
