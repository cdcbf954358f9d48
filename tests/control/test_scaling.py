"""Scales, seen by an operator and a client: the whole control plane under virtual time."""

import asyncio

from structlog.testing import capture_logs

from livescale.shared.messages.registry import AskIncidents, ProcessEnded
from livescale.shared.messages.scaling import ScaleRecord
from livescale.shared.simulation import virtual_time
from livescale.shared.subjects import INCIDENTS, PROCESS
from tests.control.control_plane import ControlPlane, control_plane, spec
from tests.control.fakes import CLOCK
from tests.control.queries import keep, last_out


def phases(record: ScaleRecord) -> list[str]:
    return [phase.name for phase in record.phases]


def test_a_registered_model_comes_to_its_minimum_of_instances() -> None:
    async def main() -> None:
        async with control_plane() as plane:
            assert await plane.serving() == ["worker-0"]
            [record] = await plane.records()
            assert record.state == "done"
            assert phases(record) == ["decided", "planned", "commanded", "first_byte", "whole", "serving"]
            [decision] = [one for one in await plane.decisions() if one.action == "out"]
            assert record.decision == decision
            assert (decision.rule, decision.target) == ("minimum", 1)

    virtual_time.run(main(), limit_seconds=100)


def test_a_burst_scales_out_and_calm_scales_in_again_and_every_token_arrives_once() -> None:
    async def main() -> None:
        async with control_plane() as plane:
            for index in range(30):
                await plane.gateway.submit(f"r-{index}", max_tokens=50)
            await plane.until_serving(3)
            await plane.until_serving(1)
            assert set(plane.gateway.finished.values()) == {"length"}
            assert all(plane.gateway.tokens[f"r-{index}"] == list(range(1, 51)) for index in range(30))
            record = last_out(await plane.records())
            assert record.plan is not None
            assert record.plan.reasons
            assert "first_token" in phases(record)

    virtual_time.run(main(), limit_seconds=200)


def test_draining_lets_requests_finish_and_takes_the_idlest_instance() -> None:
    async def main() -> None:
        async with control_plane() as plane:
            await keep(plane, 2)
            await plane.gateway.submit("long", max_tokens=200)
            await asyncio.sleep(0.2)
            await plane.register(spec(min_instances=1, downscale_delay_s=99.0))
            accepted = await plane.scale(1)
            assert accepted.target == 1
            await plane.until_serving(1)
            assert await plane.serving() == ["worker-0"]
            await asyncio.sleep(10.0)
            assert plane.gateway.finished == {"long": "length"}
            assert plane.gateway.lost == []

    virtual_time.run(main(), limit_seconds=100)


def test_scaling_to_zero_and_back_holds_the_request() -> None:
    async def main() -> None:
        async with control_plane() as plane:
            await plane.register(spec(min_instances=0))
            await plane.until_serving(0)
            asked = CLOCK.now()
            await plane.gateway.submit("r-1")
            await plane.until_serving(1)
            await asyncio.sleep(0.5)
            assert plane.gateway.finished == {"r-1": "length"}
            assert CLOCK.now() - asked < 2.0
            woken = [one for one in await plane.decisions() if one.action == "out"][1:]
            assert [(one.current, one.target, one.rule) for one in woken] == [(0, 1, "from-zero")]

    virtual_time.run(main(), limit_seconds=100)


def test_two_models_share_the_workers() -> None:
    async def main() -> None:
        async with control_plane(workers=4) as plane:
            await plane.register(spec("n"))
            await plane.until_serving(1, "n")
            await asyncio.gather(*(plane.gateway.submit(f"r-{i}", model="mn"[i % 2]) for i in range(8)))
            await asyncio.sleep(3.0)
            assert len(plane.gateway.finished) == 8

    virtual_time.run(main(), limit_seconds=100)


def shown(plane: ControlPlane, service: str, line: str) -> bool:
    """Return whether a process shows this metric of itself now."""
    return line in plane.telemetry[service].exposition().splitlines()


def test_what_an_operator_is_woken_by_is_measured_now() -> None:
    async def main() -> None:
        async with control_plane() as plane:
            assert shown(plane, "registry", 'livescale_registry_members{service="worker"} 3.0')
            assert shown(plane, "registry", 'livescale_registry_workers{state="spare"} 2.0')
            assert shown(plane, "planner", 'livescale_planner_actual_instances{model_name="m"} 1.0')
            assert shown(plane, "router", "livescale_router_in_office 1.0")
            decided = 'livescale_monitor_decisions_total{action="out",model_name="m",rule="minimum"} 1.0'
            assert shown(plane, "monitor", decided)
            await plane.kill("worker-1")
            await plane.remove("m")
            await asyncio.sleep(5.0)
            assert shown(plane, "registry", 'livescale_registry_members{service="worker"} 2.0')
            assert shown(plane, "registry", 'livescale_registry_workers{state="spare"} 2.0')
            assert shown(plane, "planner", 'livescale_planner_actual_instances{model_name="m"} 0.0')

    virtual_time.run(main(), limit_seconds=100)


def test_a_death_is_a_warning_that_says_how_long_it_was_silent_and_what_is_done() -> None:
    async def main() -> None:
        async with control_plane() as plane:
            with capture_logs() as logs:
                await plane.kill("worker-1")
                await plane.stop("worker-2")
                await asyncio.sleep(5.0)
            dead = {line["member"]: line for line in logs if line.get("state") == "dead"}
            assert dead["worker-1"]["log_level"] == "warning"
            assert dead["worker-1"]["reason"].startswith("silent for 2.")
            assert dead["worker-1"]["then"].startswith("its requests go on at other workers")
            assert dead["worker-2"]["log_level"] == "info"

    virtual_time.run(main(), limit_seconds=100)


def test_deaths_and_who_comes_back_are_told_when_somebody_asks() -> None:
    async def main() -> None:
        async with control_plane() as plane:
            asked = AskIncidents(limit=10)
            assert (await plane.operator.call(INCIDENTS, asked, timeout=1.0)).incidents == []
            end = ProcessEnded(id="worker-1", reason="killed by SIGKILL after 9 s; starting it again", at=CLOCK.wall())
            plane.operator.publish(PROCESS, end, id="worker-1")
            await plane.kill("worker-1")
            await asyncio.sleep(4.0)
            plane.add_worker(1)
            await asyncio.sleep(1.0)
            told = (await plane.operator.call(INCIDENTS, asked, timeout=1.0)).incidents
            assert [(one.kind, one.who) for one in told] == [
                ("end", "worker-1"),
                ("death", "worker-1"),
                ("start", "worker-1"),
            ]
            assert told[1].text.startswith("declared dead: silent for 2.")

    virtual_time.run(main(), limit_seconds=100)
