"""A system on three machines: addresses that are not loopback, links shaped by the kernel, a cable that is pulled."""

import asyncio
import os
import subprocess
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import msgspec
import pytest

from livescale.load.client import LoadClient, open_session, send_open_loop
from livescale.load.engine_alone import undisturbed
from livescale.load.machines import CannotEmulate, Network, network
from livescale.load.records import Ask, RequestRecord, find_fault
from livescale.load.stats import Tally
from livescale.services.cli.scale import ask_scale
from livescale.services.supervisor.bus_server import find_server
from livescale.services.supervisor.policy import missing_instances, missing_members
from livescale.services.supervisor.processes import ProcessCommand, Supervisor
from livescale.shared.bus.contract import BusError
from livescale.shared.bus.nats import NatsBus
from livescale.shared.messages.membership import Member
from livescale.shared.messages.model_spec import ModelSpec
from livescale.shared.messages.registry import AskSnapshot, Snapshot
from livescale.shared.messages.scaling import ScaleRecord
from livescale.shared.runtime.clock import SystemClock
from livescale.shared.subjects import SNAPSHOT, TRANSFER
from tests.checkpoints import tiny_checkpoint
from tests.system.conftest import LIVESCALE

RATE = 2e6  # bytes a second: more than two seconds for a whole model
PATIENCE_SECONDS = 60.0
POLL_SECONDS = 0.2
MIB = 1 << 20
MODEL = "m"
KEY = "sesame"
ASKS = [Ask(index, index * 0.25, [index + 1] * (7 + 20 * index), 24, 0.8 * (index % 2), index) for index in range(12)]


@pytest.fixture
def machines() -> Iterator[Network]:
    try:
        with network(("control", "one", "two"), f"{RATE * 8:.0f}bit") as made:
            yield made
    except CannotEmulate as reason:
        pytest.skip(str(reason))


@dataclass
class NetworkedSystem:
    """A system on the machines of a network, as seen from outside."""

    machines: Network
    nats_url: str
    bus: NatsBus
    url: str

    async def until(self, missing: Callable[[Snapshot], list[str]]) -> Snapshot:
        """Wait until nothing is missing."""
        waiting_for = ["the registry"]
        for _ in range(int(PATIENCE_SECONDS / POLL_SECONDS)):
            with suppress(BusError):  # the registry is starting
                snapshot = await self.bus.call(SNAPSHOT, AskSnapshot(), timeout=1.0)
                waiting_for = missing(snapshot)
                if not waiting_for:
                    return snapshot
            await asyncio.sleep(POLL_SECONDS)
        raise AssertionError(f"still waiting for {waiting_for}")

    async def register(self, spec: ModelSpec) -> Snapshot:
        """From outside, with the operator's key."""
        async with (
            open_session(self.url, KEY, PATIENCE_SECONDS) as session,
            session.post("admin/v1/models", json=msgspec.to_builtins(spec)) as response,
        ):
            assert response.status == 201, await response.text()
        return await self.until(lambda snapshot: missing_instances(snapshot, [spec]))

    async def answers(self) -> dict[int, list[int]]:
        records: list[RequestRecord] = []
        async with open_session(self.url, KEY, PATIENCE_SECONDS) as session:
            await send_open_loop(LoadClient(session, MODEL, SystemClock(), Tally()), ASKS, records)
        assert [fault for record in records if (fault := find_fault(record))] == []
        return {record.index: record.token_ids for record in records}

    async def scale_out(self) -> ScaleRecord:
        _, record = await ask_scale(self.bus, MODEL, 2, PATIENCE_SECONDS)
        assert record is not None
        assert record.state == "done", record
        return record

    async def scale_out_while_a_cable_is_pulled(self, machine: str) -> ScaleRecord:
        """Pulled when the first bytes have come, plugged when the registry has given the machine's processes up."""
        transfers = await self.bus.subscribe(TRANSFER)
        scaling = asyncio.create_task(self.scale_out())
        async with asyncio.timeout(PATIENCE_SECONDS):
            assert (await anext(aiter(transfers))).message.state == "started"
        self.machines.pull_cable(machine)
        await self.until(lambda snapshot: [one.id for one in of_machine(snapshot, machine) if one.lease != "dead"])
        self.machines.plug_cable(machine)
        return await scaling

    def status_on(self, machine: str) -> str:
        """What an operator there is told."""
        command = self.machines.inside(machine, str(LIVESCALE), "status")
        env = {**os.environ, "NATS_URL": self.nats_url}
        return subprocess.run(command, env=env, check=True, capture_output=True, text=True, timeout=30).stdout


def of_machine(snapshot: Snapshot, machine: str) -> list[Member]:
    return [member for member in snapshot.members if member.host == machine]


@asynccontextmanager
async def running(machines: Network, transport: str, directory: Path) -> AsyncIterator[NetworkedSystem]:
    """NATS, the control plane and a gateway on one machine; a host and a worker on each of the others."""
    control = machines.address("control")
    url = f"nats://operator:secret@{control}:4222"
    nats = ("--addr", control, "--user", "operator", "--pass", "secret", "--jetstream", "--store_dir", str(directory))
    # Without this UCX would copy from process to process, past the network.
    everywhere = {"NATS_URL": url, "LIVESCALE_API_KEY": KEY, "UCX_TLS": "tcp", "OMP_NUM_THREADS": "1"}

    def service(name: str, machine: str, *flags: str) -> ProcessCommand:
        id = f"{name}-{machine}"
        program = (str(LIVESCALE), "run", name, "--id", id, "--host-name", machine, *flags)
        env = everywhere | {"LIVESCALE_BIND": machines.address(machine)}
        return ProcessCommand(id, machines.inside(machine, *program), env=env)

    def holders(machine: str) -> Iterator[ProcessCommand]:
        yield service("host", machine, "--transport", transport)
        yield service(
            "worker", machine, f"--transport={transport}", f"--arena-bytes={8 * MIB}", f"--kv-bytes={32 * MIB}"
        )

    services = [
        *(service(name, "control") for name in ("registry", "router", "monitor")),
        service("planner", "control", f"--link-rate={RATE}"),
        service("gateway", "control", "--host", "0.0.0.0"),
        *holders("one"),
        *holders("two"),
    ]
    async with AsyncExitStack() as cleanup:
        log = cleanup.enter_context((directory / "log").open("w"))
        supervisor = await cleanup.enter_async_context(Supervisor(lambda name, line: print(name, line, file=log)))
        supervisor.start(ProcessCommand("nats", machines.inside("control", find_server(os.environ), *nats)))
        supervisor.start(*services)
        bus = await NatsBus.connect(url, "default", "test", timeout=PATIENCE_SECONDS)
        cleanup.push_async_callback(bus.close)
        networked = NetworkedSystem(machines, url, bus, f"http://{control}:8000")
        await networked.until(lambda snapshot: missing_members(snapshot, [one.name for one in services]))
        yield networked


@pytest.mark.system
@pytest.mark.slow
@pytest.mark.parametrize("transport", ["ucx", "socket"])
async def test_machines_serve_scale_out_and_survive_a_pulled_cable(
    machines: Network, transport: str, tmp_path: Path
) -> None:
    expected = await undisturbed(tiny_checkpoint("llama"), "float32", ASKS)
    spec = ModelSpec(
        name=MODEL,
        path=str(tiny_checkpoint("llama")),
        dtype="float32",
        min_instances=1,
        max_instances=2,
        downscale_delay_s=3600,
    )
    async with running(machines, transport, tmp_path) as networked:
        snapshot = await networked.register(spec)
        (source,) = [worker.id for worker in snapshot.workers if worker.state == "serving"]
        (target,) = [worker.id for worker in snapshot.workers if worker.state == "spare"]

        # No other process holds the model: the serving instance is away for a while, and so is the only source of the
        # other.
        loading = asyncio.create_task(networked.answers())
        record = await networked.scale_out_while_a_cable_is_pulled(source.removeprefix("worker-"))
        assert target in [phase.node for phase in record.phases if phase.name == "replanned"]
        assert await loading == expected
        await networked.until(lambda snapshot: [one.id for one in snapshot.members if one.lease != "alive"])
        assert "worker-two" in networked.status_on("two")
        # The monitor may have made up for the instance that was lost.
        await networked.until(lambda snapshot: [one.id for one in snapshot.workers if one.state == "loading"])

        # Now the other way, with nothing in it.
        await ask_scale(networked.bus, MODEL, 1, PATIENCE_SECONDS)
        loading = asyncio.create_task(networked.answers())
        await networked.scale_out()
        assert await loading == expected
        assert await networked.answers() == expected
