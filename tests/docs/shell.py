"""A terminal in which the commands of a page are typed, one block after the other."""

import os
import re
import secrets
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.docs.pages import ROOT, Block, blocks

# `up` goes on until Ctrl-C: here it is left running once it has said that it is ready, and ended before the next one.
# Clients fail where the server answers with an error. The commands are those of this tree.
PRELUDE = """
set -eu
UP=
livescale() {
    if [ "${1-}" != up ]; then command livescale "$@"; return; fi
    end_up; : > ready
    command livescale "$@" > ready 2> up.log & UP=$!
    until [ -s ready ]; do kill -0 $UP || { tail -n 20 up.log >&2; exit 1; }; sleep 0.1; done
}
end_up() { [ -z "$UP" ] || { kill -INT $UP; wait $UP || :; }; UP=; }
curl() { command curl --silent --show-error --fail-with-body "$@"; }
trap 'end_up; kill $(jobs -p) 2> /dev/null; wait' EXIT
"""


RUN = ("bash", "python")
BLOCK_SECONDS = 180.0


class Shell:
    """A bash process that runs one block of commands at a time."""

    def __init__(self, words: Sequence[str], directory: Path, environment: Mapping[str, str]) -> None:
        self._errors = (directory / f"errors-{secrets.token_hex(4)}").open("w+")
        self._process = subprocess.Popen(
            [*words, "bash"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            text=True,
            cwd=directory,
            env={**os.environ, **environment},
            start_new_session=True,
        )
        self.run(PRELUDE)

    def run(self, text: str) -> str:
        """What the block prints. It fails the test if a command of it fails."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        done = f"done-{secrets.token_hex(8)}"
        self._process.stdin.write(f"{text}\necho; echo {done}\n")
        self._process.stdin.flush()
        said: list[str] = []
        # What waits for ever is ended with all that it has started, and the shell with it.
        limit = threading.Timer(BLOCK_SECONDS, os.killpg, (self._process.pid, signal.SIGTERM))
        limit.start()
        try:
            for line in self._process.stdout:
                if line.strip() == done:
                    return "".join(said)
                said.append(line)
        finally:
            limit.cancel()
        self._errors.seek(0)
        pytest.fail(f"{text}\nended the shell after\n{''.join(said)}\n{self._errors.read()[-3000:]}")

    def close(self) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        self._process.wait(60)
        self._process.stdout.close()
        self._errors.close()


@contextmanager
def terminal(directory: Path, inside: Sequence[str] = (), **more: str) -> Iterator[Shell]:
    """Open a shell. `inside` are words in front of bash, such as those that enter a network namespace."""
    commands = directory / "bin"
    commands.mkdir(exist_ok=True)
    own = commands / "livescale"
    own.write_text(f'#!/bin/sh\nexec {sys.executable} -m livescale.services.cli.main "$@"\n')
    own.chmod(0o755)
    for name in ("examples", ".venv"):
        if not (directory / name).exists():
            (directory / name).symlink_to(ROOT / name)
    path = f"{commands}:{Path(sys.executable).parent}:{os.environ['PATH']}"
    # Other commands find the system of this test, and no system of the user's own.
    state = {"PATH": path, "PYTHONPATH": str(ROOT), "LIVESCALE_STATE_DIR": str(directory)}
    shell = Shell(inside, directory, {**state, **more})
    try:
        yield shell
    finally:
        shell.close()


def type_page(shell: Shell, page: Path, directory: Path, port: int) -> str:
    """Type all commands of a page, and return what they print."""
    replace = {"/tmp/": f"{directory}/", "localhost:8000": f"localhost:{port}"}
    typed = (as_typed(block, replace) for block in blocks(page) if block.why is None and block.kind in RUN)
    return "".join(shell.run(text) for text in typed)


def as_typed(block: Block, replace: Mapping[str, str]) -> str:
    """Change a block so that it can run in a test: outside of /tmp, and at another port."""
    text = block.text.replace("source .venv/bin/activate\n", "")
    for old, new in replace.items():
        text = text.replace(old, new)
    if block.kind == "python":
        return f"python - <<'END'\n{text}END"
    return re.sub(r"^\.venv/bin/", "", text, flags=re.MULTILINE)
