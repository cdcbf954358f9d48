"""Makes torch with CUDA run without CUDA's libraries: `python prune.py SITE_PACKAGES`, when an image for CPUs is built.

torch on the package index is built with CUDA. Its libraries do not load without those that they name as needed: 3 GB
that compute nothing on a CPU. Here the part of torch that is for GPUs is removed, and libraries without contents take
the place of all that is missing then. In them every call of CUDA fails with "no device", so torch finds no GPU.
A torch that was built for CPUs misses nothing, and is left alone. Headers and programs are removed, too.
"""

import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

OF_GPUS = ("libtorch_cuda_linalg.so", "libcaffe2_nvrtc.so")  # torch loads them where there is a GPU
PARTS = (
    *("torch/include", "torch/test", "torch/bin/protoc*", "torch/share", "torch/lib/*.a"),
    *("libucx/bin", "libucx/include", "libucx/share", "libucx/lib/ucx/libucx_perftest_cuda*", "libucx/lib/*.a"),
    *("libucx/lib/ucx/libuc?_cuda*", "libucxx/include", "librmm/include", "rapids_logger/include"),
)
NO_DEVICE = 100  # cudaErrorNoDevice
TYPE, TABLE = "_ZTI", "_ZTV"  # what names of type information and tables of virtual functions in C++ begin with
SYMBOL = re.compile(r"^\s*(?:[0-9a-f]+ )?\s*(?P<kind>[A-Za-z]) (?P<name>[^@\s]+)(?:@+(?P<version>\S+))?$", re.M)


def said(*command: str | Path) -> str:
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def libraries_of(users: list[Path]) -> tuple[set[Path], set[str]]:
    """What these need: the paths of the libraries that the loader finds, and the names of those that are missing."""
    told = "".join(said("ldd", user) for user in users)
    return {Path(path) for path in re.findall(r"=> (/\S+)", told)}, set(re.findall(r"(\S+) => not found", told))


def missing_symbols(users: list[Path], found: set[Path]) -> dict[str, str]:
    """The symbols that these take from libraries that are missing: name -> version, empty for most."""
    there = {
        symbol["name"]
        for path in {*users, *found}
        for symbol in SYMBOL.finditer(said("nm", "-D", "--defined-only", path))
    }
    taken = [symbol for user in users for symbol in SYMBOL.finditer(said("nm", "-D", "--undefined-only", user))]
    wanted = {symbol["name"]: symbol["version"] or "" for symbol in taken if symbol["kind"] == "U"}
    # Python's come from the program that runs, and some of the system's from the loader.
    others = {name for name, version in wanted.items() if name.startswith(("Py", "_Py")) or version.startswith("GLIBC")}
    return {name: version for name, version in wanted.items() if name not in there | others}


def stub(symbols: list[str]) -> str:
    """C code of a library with these symbols."""
    lines = ["#include <stdio.h>", "#include <stdlib.h>"]
    if any(symbol.startswith(TYPE) for symbol in symbols):
        lines.append("extern void *_ZTVN10__cxxabiv117__class_type_infoE[];")
    for symbol in sorted(symbols):
        if symbol.startswith(TYPE):  # compared by its name
            lines.append(
                f"struct {{void *table; const char *name;}} {symbol} = "
                f'{{&_ZTVN10__cxxabiv117__class_type_infoE[2], "{symbol.removeprefix(TYPE)}"}};'
            )
        elif symbol.startswith(TABLE):
            lines.append(f"void *{symbol}[512];")
        elif symbol.startswith("_Z"):
            why = f"torch: this image has no CUDA, and {symbol} was called"
            lines.append(f'void {symbol}(void) {{ fputs("{why}\\n", stderr); abort(); }}')
        elif symbol.endswith(("ErrorString", "ErrorName", "_error_str")):
            lines.append(f'const char *{symbol}(void) {{ return "this image has no CUDA"; }}')
        else:
            lines.append(f"int {symbol}(void) {{ return {NO_DEVICE}; }}")
    return "\n".join(lines) + "\n"


def build(library: Path, symbols: list[str], version: str) -> None:
    """Compile a library with these symbols, all of one version, or without one where it is empty."""
    with tempfile.TemporaryDirectory() as work:
        source, script = Path(work) / "stub.c", Path(work) / "versions"
        source.write_text(stub(symbols))
        script.write_text(f"{version} {{ global: *; }};\n" if version else "{ global: *; };\n")
        flags = ["-shared", "-fPIC", "-fno-builtin", "-w", f"-Wl,-soname,{library.name}"]
        said("gcc", *flags, f"-Wl,--version-script={script}", "-o", library, source, "-l:libstdc++.so.6")


def replace_cuda(site: Path) -> None:
    """Remove what is for GPUs, and put libraries without contents where something is missing then."""
    libraries = site / "torch/lib"
    for name in OF_GPUS:
        (libraries / name).unlink(missing_ok=True)
    users = [*libraries.glob("*.so*"), *site.glob("torch/_C*.so")]
    found, missing = libraries_of(users)
    symbols = missing_symbols(users, found)
    # A version is named after its library. In which one of the others a symbol without one lies does not matter.
    plain = min(missing - set(symbols.values()), default="")
    for name in sorted(missing):
        version = name if name in symbols.values() else ""
        homeless = name == plain
        own = [symbol for symbol, its in symbols.items() if its == version != "" or (homeless and its not in missing)]
        build(libraries / name, own, version)
        print(f"{name}: missing, {len(own)} symbols in its place")


def link_copies(site: Path) -> None:
    """Libraries that a wheel has several times, as it cannot hold links, become links again."""
    for path in list(site.glob("libucx/lib/**/*.so.*.*.*")):
        base = path.name.partition(".so")[0] + ".so"
        for copy in path.parent.glob(f"{base}*"):
            if copy != path and copy.read_bytes() == path.read_bytes():
                copy.unlink()
                copy.symlink_to(path.name)


def sizes(site: Path) -> dict[str, int]:
    """Bytes of files by part of the environment."""
    return {path.name: sum(file_sizes(path)) for path in site.iterdir()}


def file_sizes(path: Path) -> Iterator[int]:
    for each in (path, *path.rglob("*")):
        if each.is_file() and not each.is_symlink():
            yield each.stat().st_size


def main(site: Path) -> None:
    before = sizes(site)
    replace_cuda(site)
    for pattern in PARTS:
        for path in list(site.glob(pattern)):
            shutil.rmtree(path) if path.is_dir() else path.unlink()
    link_copies(site)
    after = sizes(site)
    for name, size in sorted(before.items(), key=lambda item: -item[1])[:20]:
        print(f"{name:32} {size / 1e6:8.0f} MB -> {after.get(name, 0) / 1e6:6.0f} MB")
    print(f"{'all':32} {sum(before.values()) / 1e6:8.0f} MB -> {sum(after.values()) / 1e6:6.0f} MB")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
