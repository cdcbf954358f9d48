"""The whole control plane under virtual time: what an operator and a client would see."""

from shared import virtual_time
from tests.control.plane import control_plane


def test_a_registered_model_comes_to_its_minimum_of_instances() -> None:
    async def main() -> None:
        async with control_plane() as plane:
            assert await plane.serving() == ["worker-0"]
            [record] = await plane.records()
            assert record.state == "done"
            assert [phase.name for phase in record.phases] == [
                *("decided", "planned", "commanded", "first_byte", "whole", "serving")
            ]

    virtual_time.run(main(), limit_seconds=100)


def test_a_burst_scales_out_and_calm_scales_in_again() -> None:
    async def main() -> None:
        async with control_plane() as plane:
            for index in range(30):
                await plane.gateway.submit(f"r-{index}", max_tokens=50)
            await plane.until_serving(3)
            await plane.until_serving(1)
            assert len(plane.gateway.finished) == 30
            for index in range(30):
                assert plane.gateway.tokens[f"r-{index}"] == list(range(1, 51))
            out = [one for one in await plane.records() if one.decision.action == "out"]
            assert out[-1].plan is not None
            assert out[-1].plan.chains[0].source == "worker-0"

    virtual_time.run(main(), limit_seconds=200)
