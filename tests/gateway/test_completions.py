"""The official client is content with every answer of the completions API."""

import asyncio
from pathlib import Path

import openai
import pytest
from openai.types.chat import ChatCompletionMessageParam

from tests.checkpoints import token_id
from tests.gateway.conftest import ServedGateway, eventually, serve_gateway

HELLO: list[ChatCompletionMessageParam] = [{"role": "user", "content": "hello"}]
TEXT = "Shaפjo жea 語 🙂🙂 says: ñandú…"


async def test_a_chat_is_answered_whole(served: ServedGateway) -> None:
    tokens = served.says(TEXT)
    answer = await served.client.chat.completions.create(
        model="tiny", messages=HELLO, max_completion_tokens=len(tokens), temperature=0, seed=5
    )
    assert answer.choices[0].message.content == TEXT
    assert answer.choices[0].finish_reason == "length"
    assert answer.usage is not None
    assert answer.usage.completion_tokens == len(tokens)
    assert answer.usage.prompt_tokens == len(served.cluster.submitted[0].prompt)
    assert answer.usage.prompt_tokens_details is not None
    assert answer.usage.prompt_tokens_details.cached_tokens == 2
    sampling = served.cluster.submitted[0].sampling
    assert (sampling.temperature, sampling.seed, sampling.top_p, sampling.top_k) == (0, 5, 1, 0)


async def test_a_chat_is_streamed(served: ServedGateway) -> None:
    tokens = served.says(TEXT)
    stream = await served.client.chat.completions.create(
        model="tiny", messages=HELLO, max_tokens=len(tokens), stream=True, stream_options={"include_usage": True}
    )
    chunks = [chunk async for chunk in stream]
    assert chunks[0].choices[0].delta.role == "assistant"
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks[:-1]) == TEXT
    assert [chunk.choices[0].finish_reason for chunk in chunks[:-1]] == [None] * (len(chunks) - 2) + ["length"]
    assert chunks[-1].choices == []
    assert chunks[-1].usage is not None
    assert chunks[-1].usage.completion_tokens == len(tokens)
    assert len({chunk.id for chunk in chunks}) == 1


async def test_a_completion_is_answered_whole_and_streamed(served: ServedGateway) -> None:
    tokens = served.says(TEXT)
    whole = await served.client.completions.create(model="tiny", prompt="abc", max_tokens=len(tokens))
    assert whole.choices[0].text == TEXT
    stream = await served.client.completions.create(model="tiny", prompt="abc", max_tokens=len(tokens), stream=True)
    assert "".join([chunk.choices[0].text async for chunk in stream]) == TEXT


async def test_a_completion_has_sixteen_tokens_by_default_and_a_chat_the_rest_of_the_context(
    served: ServedGateway,
) -> None:
    served.cluster.output = [65]
    answer = await served.client.completions.create(model="tiny", prompt="abc")
    assert answer.usage is not None
    assert answer.usage.completion_tokens == 16
    await served.client.chat.completions.create(model="tiny", messages=HELLO)
    submit = served.cluster.submitted[-1]
    assert submit.max_tokens == 256 - len(submit.prompt)


async def test_several_prompts_are_choices_of_one_answer(served: ServedGateway) -> None:
    answer = await served.client.completions.create(model="tiny", prompt=["a", "b", "c"], max_tokens=4)
    assert [choice.index for choice in answer.choices] == [0, 1, 2]
    assert answer.usage is not None
    assert answer.usage.completion_tokens == 12
    stream = await served.client.completions.create(model="tiny", prompt=["a", "b"], max_tokens=4, stream=True)
    texts = {0: "", 1: ""}
    async for chunk in stream:
        texts[chunk.choices[0].index] += chunk.choices[0].text
    assert texts[0] == texts[1] != ""


async def test_token_ids_go_in_and_come_out(served: ServedGateway) -> None:
    extra = {"return_token_ids": True}
    whole = await served.client.completions.create(model="tiny", prompt=[5, 6, 7], max_tokens=5, extra_body=extra)
    choice = whole.choices[0].model_dump()
    assert (choice["prompt_token_ids"], choice["token_ids"]) == ([5, 6, 7], [65, 66, 67, 65, 66])
    stream = await served.client.completions.create(
        model="tiny", prompt=[[5, 6], [7]], max_tokens=3, stream=True, extra_body=extra
    )
    chunks = [chunk.choices[0].model_dump() async for chunk in stream]
    for index, prompt in enumerate([[5, 6], [7]]):
        mine = [chunk for chunk in chunks if chunk["index"] == index]
        assert [chunk.get("prompt_token_ids") for chunk in mine] == [prompt, None, None]
        assert [chunk["token_ids"] for chunk in mine] == [[65], [66], [67]]


async def test_token_ids_of_a_chat_come_with_every_chunk(served: ServedGateway) -> None:
    stream = await served.client.chat.completions.create(
        model="tiny", messages=HELLO, max_tokens=3, stream=True, extra_body={"return_token_ids": True}
    )
    chunks = [chunk.model_dump() async for chunk in stream]
    assert chunks[0]["prompt_token_ids"] == served.cluster.submitted[0].prompt
    assert [chunk["choices"][0].get("token_ids") for chunk in chunks] == [None, [65], [66], [67]]


@pytest.mark.parametrize("stop", ["ea 語", ["never", "ea 語", "語 🙂"]])
async def test_a_stop_string_ends_the_text_before_it_and_frees_the_request(
    served: ServedGateway, stop: str | list[str]
) -> None:
    served.says(TEXT)
    stream = await served.client.completions.create(model="tiny", prompt="abc", max_tokens=200, stop=stop, stream=True)
    chunks = [chunk async for chunk in stream]
    assert "".join(chunk.choices[0].text for chunk in chunks) == TEXT[: TEXT.index("ea 語")]
    assert chunks[-1].choices[0].finish_reason == "stop"
    await eventually(lambda: served.cluster.cancelled == [served.cluster.submitted[0].request_id])


async def test_an_end_of_sequence_token_ends_the_text_unless_ignored(served: ServedGateway) -> None:
    end = token_id(served.tokenizer, "<|im_end|>")
    served.cluster.output = [65, end, 66]
    text = served.tokenizer.decode([65])
    answer = await served.client.completions.create(model="tiny", prompt="abc", max_tokens=6)
    assert (answer.choices[0].text, answer.choices[0].finish_reason) == (text, "stop")
    assert answer.usage is not None
    assert answer.usage.completion_tokens == 2
    answer = await served.client.completions.create(
        model="tiny", prompt="abc", max_tokens=6, extra_body={"ignore_eos": True}
    )
    assert answer.choices[0].finish_reason == "length"
    assert served.cluster.submitted[-1].stop_token_ids == []
    assert end in served.cluster.submitted[0].stop_token_ids


async def test_a_stream_that_fails_says_so_and_is_not_done(served: ServedGateway) -> None:
    served.cluster.finish = "error"
    stream = await served.client.completions.create(model="tiny", prompt="abc", max_tokens=3, stream=True)
    await anext(stream)
    await anext(stream)
    with pytest.raises(openai.APIError, match="kernel exploded"):
        await anext(stream)


async def test_a_client_that_leaves_a_stream_frees_its_request_at_once(served: ServedGateway) -> None:
    never = asyncio.get_running_loop().create_future()
    served.cluster.before = lambda request, position: never if position == 2 else None
    stream = await served.client.chat.completions.create(model="tiny", messages=HELLO, max_tokens=50, stream=True)
    await anext(aiter(stream))
    await stream.close()
    await eventually(lambda: served.cluster.cancelled == [served.cluster.submitted[0].request_id])


@pytest.mark.parametrize("stream", [False, True])
async def test_a_client_that_leaves_while_it_waits_frees_its_request_at_once(
    served: ServedGateway, stream: bool
) -> None:
    never = asyncio.get_running_loop().create_future()
    served.cluster.before = lambda request, position: never
    asking = asyncio.create_task(served.client.completions.create(model="tiny", prompt="abc", stream=stream))
    await eventually(lambda: len(served.cluster.submitted) == 1)
    asking.cancel()
    await eventually(lambda: served.cluster.cancelled == [served.cluster.submitted[0].request_id])


async def test_a_chat_may_begin_with_the_assistants_last_message(served: ServedGateway) -> None:
    said = served.tokenizer.decode(served.says("abc"))
    begun: list[ChatCompletionMessageParam] = [
        *HELLO,
        {"role": "assistant", "content": [{"type": "text", "text": "So: "}]},
    ]
    asked = {"model": "tiny", "messages": begun, "max_tokens": 3, "echo": True}
    assert (await served.post("/v1/chat/completions", asked))[1]["choices"][0]["message"]["content"] == f"So: {said}"
    stream = await served.client.chat.completions.create(
        model="tiny", messages=begun, max_tokens=3, stream=True, extra_body={"echo": True}
    )
    assert "".join([chunk.choices[0].delta.content or "" async for chunk in stream]) == f"So: {said}"
    other = await served.post("/v1/chat/completions", {**asked, "messages": HELLO})
    assert other[1]["choices"][0]["message"]["content"] == said


async def test_the_rendered_messages_are_told_where_they_are_asked_for(served: ServedGateway) -> None:
    asked = {"model": "tiny", "messages": HELLO, "max_tokens": 1, "return_prompt_text": True}
    answer = (await served.post("/v1/chat/completions", asked))[1]
    assert served.tokenizer.encode(answer["prompt_text"]).ids == served.cluster.submitted[0].prompt
    stream = await served.client.chat.completions.create(
        model="tiny", messages=HELLO, max_tokens=1, stream=True, extra_body={"return_prompt_text": True}
    )
    told = [chunk.model_dump().get("prompt_text") async for chunk in stream]
    assert told == [answer["prompt_text"], None]


async def test_a_stream_has_as_many_tokens_an_event_as_are_asked_for(served: ServedGateway) -> None:
    extra = {"stream_interval": 3, "return_token_ids": True}
    stream = await served.client.completions.create(
        model="tiny", prompt="abc", max_tokens=9, stream=True, extra_body=extra
    )
    events = [chunk.choices[0].model_dump()["token_ids"] async for chunk in stream]
    assert events == [[65], [66, 67, 65], [66, 67, 65], [66, 67]]


async def test_a_template_of_the_client_needs_the_operators_leave(checkpoint: Path) -> None:
    template = "{{ bos_token }}<{% for message in messages %}{{ message.content }}{% endfor %}>"
    asked = {"model": "tiny", "messages": HELLO, "max_tokens": 1, "return_prompt_text": True, "chat_template": template}
    async with serve_gateway(checkpoint) as served:
        status, answer = await served.post("/v1/chat/completions", asked)
        assert (status, answer["error"]["param"]) == (400, "chat_template")
        assert "LIVESCALE_TRUST_REQUEST_CHAT_TEMPLATE=1" in answer["error"]["message"]
    async with serve_gateway(checkpoint, trust_request_chat_template=True) as served:
        status, answer = await served.post("/v1/chat/completions", asked)
        assert (status, answer["prompt_text"].endswith("<hello>")) == (200, True)
        status, answer = await served.post("/v1/chat/completions", {**asked, "chat_template": "{% for"})
        assert (status, answer["error"]["param"]) == (400, "chat_template")
        assert "cannot be compiled" in answer["error"]["message"]


async def test_a_request_may_be_named_in_its_body(served: ServedGateway) -> None:
    asked = {"model": "tiny", "prompt": "abc", "max_tokens": 1, "request_id": "mine"}
    for headers, id, public in (({}, "cmpl-mine", "mine"), ({"x-request-id": "theirs"}, None, "theirs")):
        async with served.http.post(f"{served.url}/v1/completions", json=asked, headers=headers) as answer:
            assert answer.headers["x-request-id"] == public
            assert ((await answer.json())["id"] == id) == (id is not None)
        assert served.cluster.contexts[-1].request_id == public
    assert len({submit.request_id for submit in served.cluster.submitted}) == 2  # names of clients may come twice
