"""Models are listed with their state."""

import openai
import pytest

from tests.gateway.conftest import ServedGateway


async def test_models_are_listed_with_their_state(served: ServedGateway) -> None:
    models = [model async for model in served.client.models.list()]
    assert [model.id for model in models] == ["tiny"]
    one = await served.client.models.retrieve("tiny")
    assert one.model_dump()["livescale"] == {"state": "ready", "instances": 1, "error": None}
    assert one.model_dump()["max_model_len"] == 256
    with pytest.raises(openai.NotFoundError, match="does not exist"):
        await served.client.models.retrieve("other")
