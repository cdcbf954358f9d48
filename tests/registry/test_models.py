"""What operators ask of models."""

from typing import Any

import pytest

from livescale.shared.bus.contract import Call, Refusal
from livescale.shared.messages.model_spec import ModelSpec
from livescale.shared.messages.registry import AskModels, Named, Register
from livescale.shared.subjects import KEEP, MANIFEST, MODELS, REGISTER, REMOVE
from tests.registry.local import add_host, in_virtual_time, registry
from tests.registry.reports import CHECKED, SIZE, spec


@pytest.mark.parametrize("question", [KEEP, MANIFEST, REMOVE], ids=["keep", "manifest", "remove"])
def test_a_model_that_is_not_registered_is_refused(question: Call[Named, Any]) -> None:
    async def main() -> None:
        async with registry() as bus:
            with pytest.raises(Refusal, match="model 'm' is not registered") as caught:
                await bus.call(question, Named(model="m"), timeout=1.0)
            assert caught.value.code == 404

    in_virtual_time(main())


@pytest.mark.parametrize(
    ("asked", "code", "said"),
    [(spec(), 503, "no host service is alive"), (spec("no spaces"), 400, "name must be 1 to 128 of")],
)
def test_a_model_that_nobody_can_check_or_that_cannot_be_is_refused(asked: ModelSpec, code: int, said: str) -> None:
    async def main() -> None:
        async with registry() as bus:
            with pytest.raises(Refusal, match=said) as caught:
                await bus.call(REGISTER, Register(spec=asked), timeout=1.0)
            assert caught.value.code == code

    in_virtual_time(main())


def test_a_model_is_registered_as_a_host_finds_it_and_removed_again() -> None:
    async def main() -> None:
        async with registry() as bus:
            await add_host(bus, CHECKED)
            asked = Register(spec=spec(min_instances=3), named=["path"])
            entry = await bus.call(REGISTER, asked, timeout=1.0)
            assert (entry.state, entry.size_bytes, entry.spec.min_instances) == ("reading", SIZE, 1)
            [known] = (await bus.call(MODELS, AskModels(), timeout=1.0)).models
            assert known.spec == entry.spec
            assert (await bus.call(REMOVE, Named(model="m"), timeout=1.0)).state == "removing"

    in_virtual_time(main())
