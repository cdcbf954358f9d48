"""Several machines on one: a network namespace each, joined by a switch, with cards that the kernel shapes to a rate
and a cable that can be pulled."""

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

PREFIX = "livescale-"
CARD = "eth0"
BURST = "256kb"  # the kernel cuts what is longer into packets one by one, and its longest come to more than 64 KiB
ROOT = 254  # our own address in the network


class CannotEmulate(Exception):
    """This machine cannot emulate a network, for this reason."""


@dataclass(frozen=True)
class Network:
    """`names` are machines at 198.18.N.1, .2 and so on: addresses that are set aside for tests of networks."""

    names: Sequence[str]
    rate: str

    @property
    def switch(self) -> str:
        return namespace("switch")

    def address(self, name: str) -> str:
        return f"{self.subnet}.{self.names.index(name) + 1}"

    @property
    def subnet(self) -> str:
        return f"198.18.{os.getpid() % 256}"

    def inside(self, name: str, *words: str) -> tuple[str, ...]:
        """The command that runs `words` on the machine of this name."""
        return ("ip", "netns", "exec", namespace(name), *words)

    def pull_cable(self, name: str) -> None:
        ip("-n", self.switch, "link", "set", "dev", name, "down")

    def plug_cable(self, name: str) -> None:
        ip("-n", self.switch, "link", "set", "dev", name, "up")

    def build(self) -> None:
        ip("netns", "add", self.switch)
        ip("-n", self.switch, "link", "add", "bridge", "type", "bridge")
        ip("-n", self.switch, "link", "set", "bridge", "up")
        for name in self.names:
            machine = namespace(name)
            ip("netns", "add", machine)
            ip("-n", machine, "link", "add", CARD, "type", "veth", "peer", "name", name, "netns", self.switch)
            self._attach(name)
            ip("-n", machine, "addr", "add", f"{self.address(name)}/24", "dev", CARD)
            ip("-n", machine, "link", "set", "lo", "up")
            ip("-n", machine, "link", "set", CARD, "up")
            for where, device in ((machine, CARD), (self.switch, name)):  # out of the card, and into it
                tbf = ("tbf", "rate", self.rate, "burst", BURST, "latency", "100ms")
                run("tc", "-n", where, "qdisc", "add", "dev", device, "root", *tbf)
        ip("link", "add", root_card(), "type", "veth", "peer", "name", "root", "netns", self.switch)
        self._attach("root")
        ip("addr", "add", f"{self.subnet}.{ROOT}/24", "dev", root_card())
        ip("link", "set", root_card(), "up")

    def _attach(self, port: str) -> None:
        ip("-n", self.switch, "link", "set", "dev", port, "master", "bridge")
        ip("-n", self.switch, "link", "set", "dev", port, "up")


@contextmanager
def network(names: Sequence[str], rate: str) -> Iterator[Network]:
    """A network that is gone at the end, with every process in it. Raises CannotEmulate."""
    check_can_emulate()
    clear_abandoned()
    made = Network(names, rate)
    with unwound_by_signals():
        try:
            try:
                made.build()
            except subprocess.CalledProcessError as error:
                raise CannotEmulate(f"network namespaces cannot be made here: {error.stderr.strip()}") from None
            yield made
        finally:
            clear(os.getpid())


def check_can_emulate() -> None:
    """Raises CannotEmulate if something is missing that shows without making anything."""
    if os.geteuid() != 0:
        raise CannotEmulate("network namespaces need root")
    if missing := [tool for tool in ("ip", "tc") if shutil.which(tool) is None]:
        raise CannotEmulate(f"{' and '.join(missing)} of iproute2 not found")


@contextmanager
def unwound_by_signals() -> Iterator[None]:
    """Clean up after SIGTERM as after Ctrl-C. What SIGKILL leaves behind, the next network removes."""

    def leave(number: int, _frame: object) -> None:
        sys.exit(128 + number)

    before = {number: signal.signal(number, leave) for number in (signal.SIGTERM, signal.SIGHUP)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def namespace(name: str) -> str:
    return f"{PREFIX}{os.getpid()}-{name}"


def root_card() -> str:
    return f"lvs{os.getpid()}"


def owners() -> set[int]:
    """The ids of processes that have networks here."""
    return {int(name.split("-")[1]) for name in namespaces()}


def namespaces() -> list[str]:
    return [line.split()[0] for line in ip("netns", "list").splitlines() if line.startswith(PREFIX)]


def clear_abandoned() -> None:
    """Remove networks whose processes were killed."""
    for pid in owners():
        if not Path(f"/proc/{pid}").exists():
            clear(pid)


def clear(pid: int) -> None:
    """The namespaces that a process made, what runs in them, and the cards between them."""
    for name in namespaces():
        if name.startswith(f"{PREFIX}{pid}-"):
            for left in ip("netns", "pids", name).split():
                with suppress(ProcessLookupError):
                    os.kill(int(left), signal.SIGKILL)
            ip("netns", "delete", name)
    # A card lives on until the last process of its other end's namespace is gone.
    with suppress(subprocess.CalledProcessError):
        ip("link", "delete", f"lvs{pid}")


def ip(*words: str) -> str:
    return run("ip", *words)


def run(*words: str) -> str:
    return subprocess.run(words, check=True, capture_output=True, text=True, timeout=10).stdout
