"""An order to change a role, in the whole control plane: only routing changes, and the worker keeps its role."""

import pytest

from livescale.shared.bus.contract import Refusal
from livescale.shared.messages.membership import Role
from livescale.shared.messages.scaling import RoleSet, SetRole
from livescale.shared.simulation import virtual_time
from livescale.shared.subjects import ROLE
from tests.control.control_plane import ControlPlane, control_plane, spec


async def order(plane: ControlPlane, role: Role, worker: str = "") -> RoleSet:
    worker = worker or (await plane.serving())[0]
    return await plane.operator.call(ROLE, SetRole(worker=worker, role=role), timeout=5.0)


async def roles(plane: ControlPlane) -> list[str | None]:
    return [one.role for one in (await plane.snapshot()).workers if one.state == "serving"]


def test_a_worker_takes_the_role_that_it_is_given_without_a_load_or_a_drain() -> None:
    async def main() -> None:
        async with control_plane() as plane:
            before = {worker.id: worker.plan_id for worker in (await plane.snapshot()).workers}
            answer = await order(plane, "prefill")
            assert (answer.before, answer.role) == ("colocated", "prefill")

            async def has_role() -> bool:
                return await roles(plane) == ["prefill"]

            await plane.until(has_role)
            assert {worker.id: worker.plan_id for worker in (await plane.snapshot()).workers} == before
            assert (await order(plane, "prefill")).before == "prefill"

    virtual_time.run(main(), limit_seconds=100)


def test_a_role_that_was_given_by_hand_is_on_record_and_one_that_the_router_gave_is_told_by_the_monitor() -> None:
    async def main() -> None:
        async with control_plane() as plane:
            worker = (await plane.serving())[0]
            before = await plane.records()
            await order(plane, "prefill")
            await order(plane, "prefill")  # the second time it changes nothing
            again = SetRole(worker=worker, role="decode", reason="1 of 2 prefill")
            await plane.operator.call(ROLE, again, timeout=5.0)
            [record] = (await plane.records())[len(before) :]
            [move] = record.moves
            assert (record.state, record.outcome) == ("done", "1 instance has another role")
            assert (move.worker, move.before, move.role) == (worker, "colocated", "prefill")
            decision = record.decision
            assert (decision.model, decision.action, decision.by) == ("m", "switch", "operator")
            assert (decision.current, decision.target) == (1, 1)
            assert decision.reason == f"an operator gave {worker} the role prefill"

    virtual_time.run(main(), limit_seconds=100)


def test_an_order_or_an_answer_that_is_lost_is_given_again() -> None:
    async def main() -> None:
        async with control_plane() as plane:
            for lost in ("worker.", "answer."):
                left = [2]

                def lose(subject: str, lost: str = lost, left: list[int] = left) -> tuple[float, ...]:
                    is_order = subject.endswith(".role") and f"{lost}" in subject and "planner" not in subject
                    if is_order and left[0]:
                        left[0] -= 1
                        return ()
                    return (0.0,)

                plane.broker.delays = lose
                assert (await order(plane, "decode")).role == "decode"
                assert left == [0]

    virtual_time.run(main(), limit_seconds=100)


def test_a_worker_that_does_not_answer_is_an_error_and_the_order_may_be_repeated() -> None:
    async def main() -> None:
        async with control_plane() as plane:
            plane.broker.lose = lambda subject: subject.endswith(".role") and "worker" in subject
            with pytest.raises(Refusal, match="give the order again") as refused:
                await order(plane, "decode")
            assert refused.value.code == 503
            plane.broker.lose = lambda subject: False
            assert (await order(plane, "decode")).before == "colocated"

    virtual_time.run(main(), limit_seconds=100)


def test_a_worker_keeps_its_role_though_the_planner_starts_anew() -> None:
    async def main() -> None:
        async with control_plane() as plane:
            await order(plane, "decode")
            await plane.kill("planner-0")
            plane.restart("planner")
            await plane.until_serving(1)
            assert await roles(plane) == ["decode"]

            async def answers() -> bool:
                try:
                    return (await order(plane, "prefill")).before == "decode"
                except Refusal:
                    return False

            await plane.until(answers)

    virtual_time.run(main(), limit_seconds=100)


@pytest.mark.parametrize(("system", "own"), [("on", None), ("off", "on")])
def test_new_instances_get_roles_by_their_share_where_there_is_disaggregation(system: str, own: str | None) -> None:
    async def main() -> None:
        async with control_plane(workers=4, register=False, disaggregation=system) as plane:
            await plane.register(spec(min_instances=4, max_instances=4, disaggregation=own))
            await plane.until_serving(4)
            assert sorted(map(str, await roles(plane))) == ["decode", "decode", "prefill", "prefill"]
            plans = [record.plan for record in await plane.records()]
            assert all(plan is None or any(why.startswith("roles ") for why in plan.reasons) for plan in plans)

    virtual_time.run(main(), limit_seconds=100)


@pytest.mark.parametrize(("system", "own"), [("auto", None), ("on", "auto")])
def test_where_the_router_gives_roles_new_instances_do_both(system: str, own: str | None) -> None:
    async def main() -> None:
        async with control_plane(workers=3, register=False, disaggregation=system) as plane:
            await plane.register(spec(min_instances=3, max_instances=3, disaggregation=own))
            await plane.until_serving(3)
            assert await roles(plane) == ["colocated"] * 3

    virtual_time.run(main(), limit_seconds=100)


@pytest.mark.parametrize(("worker", "code"), [("worker-9", 404), ("spare", 409)])
def test_only_who_leads_an_instance_has_a_role(worker: str, code: int) -> None:
    async def main() -> None:
        async with control_plane() as plane:
            spare = next(one.id for one in (await plane.snapshot()).workers if one.state == "spare")
            with pytest.raises(Refusal) as refused:
                await order(plane, "decode", spare if worker == "spare" else worker)
            assert refused.value.code == code

    virtual_time.run(main(), limit_seconds=100)
