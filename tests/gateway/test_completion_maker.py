"""The response to a request's prompts is made."""

from tests.gateway.conftest import ServedGateway


async def test_a_request_may_be_named_in_its_body(served: ServedGateway) -> None:
    asked = {"model": "tiny", "prompt": "abc", "max_tokens": 1, "request_id": "mine"}
    for headers, id, public in (({}, "cmpl-mine", "mine"), ({"x-request-id": "theirs"}, None, "theirs")):
        async with served.http.post(f"{served.url}/v1/completions", json=asked, headers=headers) as answer:
            assert answer.headers["x-request-id"] == public
            assert ((await answer.json())["id"] == id) == (id is not None)
        assert served.cluster.contexts[-1].request_id == public
    assert len({submit.request_id for submit in served.cluster.submitted}) == 2  # names of clients may come twice
