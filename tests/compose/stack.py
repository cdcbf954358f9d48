"""A stack of docker-compose.yml for a test: started, asked, killed in parts, and gone at the end with its volumes."""

import json
import os
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from livescale.services.supervisor.ports import free_port

ROOT = Path(__file__).parents[2]
KEY = "sesame"
COMMAND_SECONDS = 180.0
POLL_SECONDS = 0.5
ONE_MACHINE = ("docker-compose.yml",)
# The tool that is there: the one that Debian 12 ships, or the plugin of today. COMPOSE="docker compose" has the other.
TOOL = tuple(
    os.environ.get("COMPOSE", "docker-compose" if shutil.which("docker-compose") else "docker compose").split()
)

T = TypeVar("T")


def docker(*words: str, check: bool = True) -> str:
    """What a command of docker prints. Raises AssertionError with what it says where it fails."""
    return run(("docker", *words), {}, check)


def run(command: Sequence[str], env: dict[str, str], check: bool = True) -> str:
    done = subprocess.run(command, cwd=ROOT, env={**os.environ, **env}, capture_output=True, text=True, timeout=600)
    assert not check or done.returncode == 0, f"{' '.join(command)}: {done.stderr[-4000:]}"
    return done.stdout


@dataclass
class Container:
    """A container as the engine tells of it."""

    id: str
    service: str
    state: str
    health: str | None

    @property
    def well(self) -> bool:
        return self.state == "running" and self.health in (None, "healthy")


@dataclass
class ComposeStack:
    """A project of Compose. `directory` has its models and secrets; `env` is passed to the files, `flags` to `up`."""

    directory: Path
    files: Sequence[str] = ONE_MACHINE
    flags: Sequence[str] = ()
    env: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.project = f"livescale-test-{os.getpid()}"
        self.models = self.directory / "models"
        self.ports = [free_port(), free_port()]
        self.env = {
            "COMPOSE_PROJECT_NAME": self.project,
            "COMPOSE_FILE": ":".join(self.files),
            "LIVESCALE_API_KEY": KEY,
            "MODELS": str(self.models),
            "SECRETS": str(self.directory / "secrets"),
            "CONFIG": str(self.directory / "config"),
            "PORT": str(self.ports[0]),
            "PORT_2": str(self.ports[1]),
            # Small models: what is touched at the start is what takes long.
            "LIVESCALE_ARENA_BYTES": str(64 << 20),
            "LIVESCALE_KV_BYTES": str(32 << 20),
            **self.env,
        }

    @property
    def urls(self) -> list[str]:
        """Of both gateways."""
        return [f"http://127.0.0.1:{port}" for port in self.ports]

    def compose(self, *words: str, check: bool = True) -> str:
        return run((*TOOL, *words), self.env, check)

    def add_model(self, name: str, checkpoint: Path) -> None:
        """Copy a checkpoint to where the containers' user may read it."""
        shutil.copytree(checkpoint, self.models / name)
        for path in (self.directory, *self.models.rglob("*"), self.models):
            path.chmod(0o755 if path.is_dir() else 0o644)

    def make_secrets(self) -> None:
        (self.directory / "secrets").mkdir()
        self.compose("run", "--rm", "credentials")

    def up(self, *words: str) -> None:
        self.compose("up", "-d", *self.flags, *words)

    def down(self) -> None:
        self.compose("down", "--volumes", "--remove-orphans", "--timeout", "5", check=False)

    def containers(self, service: str | None = None) -> list[Container]:
        """Those of a service, or all, also stopped ones; without those of commands run by hand."""
        label = f"label=com.docker.compose.project={self.project}"
        ids = docker("ps", "--all", "--quiet", "--no-trunc", "--filter", label).split()
        found = [self._container(each) for each in (json.loads(docker("inspect", *ids)) if ids else [])]
        return [one for one in found if one is not None and service in (None, one.service)]

    def _container(self, told: dict[str, Any]) -> Container | None:
        labels, state = told["Config"]["Labels"], told["State"]
        if labels.get("com.docker.compose.oneoff") == "True":
            return None
        health = state.get("Health", {}).get("Status")
        return Container(told["Id"], labels["com.docker.compose.service"], state["Status"], health)

    def until(self, what: Callable[[], T | None], seconds: float, waiting_for: str) -> T:
        """Ask until there is an answer that counts. Raises AssertionError once the time is over."""
        last = time.monotonic() + seconds
        while time.monotonic() < last:
            found = what()
            if found:
                return found
            time.sleep(POLL_SECONDS)
        raise AssertionError(f"after {seconds:.0f} s still waiting for {waiting_for}: {self.ill()}")

    def ill(self) -> list[str]:
        """The services that do not run or are not healthy, in words."""
        return [f"{one.service} {one.state} {one.health}" for one in self.containers() if not one.well]

    def wait_healthy(self, seconds: float) -> float:
        """Wait until all containers run and are healthy. Returns how long it took, in seconds."""
        start = time.monotonic()
        self.until(lambda: not self.ill() or None, seconds, "health")
        return time.monotonic() - start

    def kill(self, container: Container) -> None:
        """SIGKILL, and the container is gone: what `rm -sf` does to all containers of a service."""
        docker("kill", "--signal", "KILL", container.id, check=False)
        docker("rm", "--force", container.id)

    def cli(self, *words: str) -> str:
        """One of our commands, with the operator's login."""
        return self.compose("run", "--rm", "-T", "cli", *words)

    def status(self) -> dict[str, Any]:
        told: dict[str, Any] = json.loads(self.cli("status", "--json"))
        return told

    def logs(self, service: str) -> str:
        return self.compose("logs", "--no-color", service)


@contextmanager
def running(stack: ComposeStack) -> Iterator[ComposeStack]:
    """The stack is up inside the block, and gone after it, whatever happens.

    What its processes said stays in `logs.txt`.
    """
    try:
        stack.make_secrets()
        stack.up()
        yield stack
    finally:
        (stack.directory / "logs.txt").write_text(stack.compose("logs", "--no-color", "--timestamps", check=False))
        stack.down()
