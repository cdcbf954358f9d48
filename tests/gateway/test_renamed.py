import re
from collections.abc import Mapping

import pytest

from livescale.services.gateway.errors import ApiError, bad_request
from livescale.services.gateway.messages_request import NAMES as OF_MESSAGES
from livescale.services.gateway.renamed import renamed
from livescale.services.gateway.responses_request import NAMES as OF_RESPONSES


@pytest.mark.parametrize(
    ("names", "param", "name"),
    [
        (OF_RESPONSES, "messages", "input"),
        (OF_RESPONSES, "tools[3].function.parameters.type", "tools[3].parameters.type"),
        (OF_RESPONSES, "tool_choice.function.name", "tool_choice.name"),
        (OF_RESPONSES, "messages[0].role", "messages[0].role"),  # of no such name
        (OF_MESSAGES, "tools[3].function.parameters.type", "tools[3].input_schema.type"),
        (OF_MESSAGES, "response_format", "output_config.format"),
        (OF_MESSAGES, "messages", "messages"),
    ],
)
def test_a_parameter_has_the_name_that_its_client_knows(names: Mapping[str, str], param: str, name: str) -> None:
    with pytest.raises(ApiError, match=re.escape(f"{name!r} is wrong")) as refused, renamed(names):
        raise bad_request(f"{param!r} is wrong; leave it out.", param)
    assert refused.value.detail.param == name


def test_an_error_about_no_parameter_stays() -> None:
    with pytest.raises(ApiError, match="Nothing of messages") as refused, renamed(OF_RESPONSES):
        raise bad_request("Nothing of messages is wrong.")
    assert refused.value.detail.param is None
