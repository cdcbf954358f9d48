"""What would be submitted is said, and nothing is generated."""

from typing import Any

from tests.gateway.conftest import ServedGateway

CHAT: dict[str, Any] = {"model": "tiny", "messages": [{"role": "user", "content": "Is it wärm?"}]}


async def test_a_rendered_chat_is_what_is_submitted(served: ServedGateway) -> None:
    asked = {**CHAT, "temperature": 0.125, "seed": 3, "max_tokens": 2, "return_token_offsets": True}
    options = {"stream": True, "stream_options": {"include_usage": True}}
    status, rendered = await served.post("/v1/chat/completions/render", {**asked, **options})
    assert status == 200
    assert served.cluster.submitted == []
    await served.post("/v1/chat/completions", asked)
    [submitted] = served.cluster.submitted
    assert rendered["token_ids"] == submitted.prompt
    assert (rendered["stream"], rendered["stream_options"]["include_usage"]) == (True, True)
    said = rendered["sampling_params"]
    assert (said["temperature"], said["seed"], said["max_tokens"]) == (0.125, 3, 2)
    assert said["stop_token_ids"] == submitted.stop_token_ids
    pieces = [rendered["prompt"][begin:end] for begin, end in rendered["token_offsets"]]
    assert len(pieces) == len(submitted.prompt)
    assert "".join(dict.fromkeys(pieces)).startswith("<|im_start|>")


async def test_each_prompt_of_a_completion_is_rendered(served: ServedGateway) -> None:
    status, texts = await served.post("/v1/completions/render", {"model": "tiny", "prompt": ["one", "two"]})
    assert status == 200
    assert [one["prompt"] for one in texts] == ["one", "two"]
    asked = {"model": "tiny", "prompt": texts[0]["prompt_token_ids"], "return_token_offsets": True}
    _, [tokens] = await served.post("/v1/completions/render", asked)
    assert (tokens["token_ids"], tokens["prompt"], tokens["token_offsets"]) == (texts[0]["token_ids"], None, None)


async def test_what_cannot_be_submitted_is_not_rendered(served: ServedGateway) -> None:
    status, _ = await served.post("/v1/completions/render", {"model": "other", "prompt": "a"})
    assert status == 404
    status, answer = await served.post("/v1/completions/render", {"model": "tiny", "prompt": "a " * 5_000})
    assert (status, answer["error"]["param"]) == (400, "prompt")


async def test_the_tokenizer_is_told_with_its_template(served: ServedGateway) -> None:
    status, told = await served.get("/tokenizer_info")
    assert status == 200
    assert "im_start" in told["chat_template"]
    assert told["tokenizer_class"]
    assert (await served.get("/tokenizer_info?model=other"))[0] == 404
