"""Several choices of one prompt, and how likely tokens were, as clients of OpenAI and vLLM get them."""

import asyncio
from itertools import groupby
from typing import Any

import openai
import pytest
from openai.types.chat import ChatCompletionMessageParam

from livescale.shared.bus.contract import Refusal
from tests.gateway.conftest import ServedGateway, eventually

HELLO: list[ChatCompletionMessageParam] = [{"role": "user", "content": "hello"}]


async def test_choices_have_their_seeds_and_the_prompt_is_counted_once(served: ServedGateway) -> None:
    answer = await served.client.completions.create(model="tiny", prompt=[5, 6, 7], max_tokens=4, n=3, seed=9)
    assert [choice.index for choice in answer.choices] == [0, 1, 2]
    assert answer.usage is not None
    assert (answer.usage.prompt_tokens, answer.usage.completion_tokens) == (3, 12)
    assert answer.usage.prompt_tokens_details is not None
    assert answer.usage.prompt_tokens_details.cached_tokens == 2  # as the cluster says of each choice
    seeds = [submit.sampling.seed for submit in served.cluster.submitted]
    assert seeds[0] == 9
    assert len(set(seeds)) == 3


async def test_the_choices_of_two_prompts_are_in_order(served: ServedGateway) -> None:
    answer = await served.client.completions.create(
        model="tiny", prompt=[[5], [6, 7]], max_tokens=1, n=2, extra_body={"return_token_ids": True}
    )
    prompts = [choice.model_dump()["prompt_token_ids"] for choice in answer.choices]
    assert prompts == [[5], [5], [6, 7], [6, 7]]


async def test_other_choices_begin_when_the_first_has_a_token(served: ServedGateway) -> None:
    first = asyncio.get_running_loop().create_future()
    served.cluster.before = lambda request, position: first if position == 0 else None
    asking = asyncio.ensure_future(
        served.client.chat.completions.create(model="tiny", messages=HELLO, max_tokens=2, n=3)
    )
    await eventually(lambda: bool(served.cluster.submitted))
    await served.get("/v1/models")  # by now the others would have been submitted, too
    assert len(served.cluster.submitted) == 1
    first.set_result(None)
    assert [choice.index for choice in (await asking).choices] == [0, 1, 2]
    [name, *_] = [submit.request_id for submit in served.cluster.submitted]
    assert [submit.follows for submit in served.cluster.submitted] == [None, name, name]


async def test_a_stream_of_choices_begins_each_with_its_role_and_is_done_once(served: ServedGateway) -> None:
    stream = await served.client.chat.completions.create(
        model="tiny", messages=HELLO, max_tokens=3, n=2, stream=True, stream_options={"include_usage": True}
    )
    chunks = [chunk async for chunk in stream]
    assert chunks[-1].usage is not None
    assert chunks[-1].usage.completion_tokens == 6
    choices = sorted((chunk.choices[0] for chunk in chunks[:-1]), key=lambda choice: choice.index)
    for _, group in groupby(choices, key=lambda choice: choice.index):
        mine = list(group)
        assert mine[0].delta.role == "assistant"
        assert [one.finish_reason for one in mine] == [None, None, None, "length"]


async def test_best_of_answers_the_likeliest(served: ServedGateway) -> None:
    answer = await served.client.completions.create(model="tiny", prompt="a", max_tokens=2, n=1, best_of=3)
    assert len(served.cluster.submitted) == 3
    assert [choice.logprobs for choice in answer.choices] == [None]
    assert answer.usage is not None
    assert answer.usage.completion_tokens == 6


async def test_a_completions_log_probabilities_are_lists(served: ServedGateway) -> None:
    answer = await served.client.completions.create(model="tiny", prompt="a", max_tokens=3, logprobs=2)
    told = answer.choices[0].logprobs
    assert told is not None
    names = [served.tokenizer.decode([id]) for id in (65, 66, 67)]
    assert told.tokens == names
    assert told.token_logprobs == [-0.65, -0.66, -0.67]
    assert told.top_logprobs is not None
    assert told.top_logprobs[0] == {names[1]: 0.0, names[2]: -0.1, names[0]: -0.65}
    assert told.text_offset == [0, len(names[0]), len(names[0] + names[1])]
    stream = await served.client.completions.create(model="tiny", prompt="a", max_tokens=3, logprobs=0, stream=True)
    pieces = [chunk.choices[0].logprobs async for chunk in stream]
    assert [piece.text_offset for piece in pieces if piece] == [[offset] for offset in told.text_offset]
    assert [piece.top_logprobs for piece in pieces if piece] == [
        [{name: -id / 100}] for id, name in zip((65, 66, 67), names, strict=True)
    ]


async def test_a_chats_log_probabilities_have_an_entry_for_each_token(served: ServedGateway) -> None:
    tokens = served.says("語 🙂")
    asked: dict[str, Any] = {
        "model": "tiny",
        "messages": HELLO,
        "max_tokens": len(tokens),
        "logprobs": True,
        "top_logprobs": 1,
    }
    whole = await served.client.chat.completions.create(**asked)
    assert whole.choices[0].logprobs is not None
    content = whole.choices[0].logprobs.content or []
    assert [entry.logprob for entry in content] == [-id / 100 for id in tokens]
    assert [[one.logprob for one in entry.top_logprobs] for entry in content] == [[0.0]] * len(tokens)
    assert all(bytes(entry.bytes or []).decode() == entry.token for entry in content)
    stream = await served.client.chat.completions.create(**asked, stream=True)
    streamed = [chunk.choices[0].logprobs async for chunk in stream]
    assert [entry for one in streamed if one for entry in one.content or []] == content


async def test_an_echo_is_the_prompt_and_its_log_probabilities(served: ServedGateway) -> None:
    prompt = served.tokenizer.encode("abc", add_special_tokens=False).ids
    asked: dict[str, Any] = {"model": "tiny", "prompt": prompt, "echo": True, "logprobs": 1}
    whole = await served.client.completions.create(**asked, max_tokens=2)
    assert whole.choices[0].text == "abc" + served.tokenizer.decode([65, 66])
    told = whole.choices[0].logprobs
    assert told is not None
    ids = [*prompt, 65, 66]
    assert told.token_logprobs == [None, *(-id / 100 for id in ids[1:])]
    assert told.tokens == [served.tokenizer.decode([id]) for id in ids]
    assert (told.top_logprobs or [])[0] is None
    stream = await served.client.completions.create(**asked, max_tokens=2, stream=True)
    pieces = [chunk.choices[0] async for chunk in stream]
    assert "".join(piece.text for piece in pieces) == whole.choices[0].text
    offsets = [offset for piece in pieces if piece.logprobs for offset in piece.logprobs.text_offset or []]
    assert offsets == told.text_offset


async def test_an_echo_has_the_special_tokens_that_the_answer_has(served: ServedGateway) -> None:
    special = next(iter(served.tokenizer.get_added_tokens_decoder()))
    asked: dict[str, Any] = {"model": "tiny", "prompt": [65, special, 66], "echo": True, "max_tokens": 1}
    plain = await served.client.completions.create(**asked)
    written = await served.client.completions.create(**asked, extra_body={"skip_special_tokens": False})
    assert plain.choices[0].text == served.tokenizer.decode([65, special, 66, 65])
    assert written.choices[0].text == served.tokenizer.decode([65, special, 66, 65], skip_special_tokens=False)
    assert plain.choices[0].text != written.choices[0].text


async def test_a_prompt_may_be_asked_for_alone(served: ServedGateway) -> None:
    answer = await served.client.completions.create(model="tiny", prompt=[65, 66], max_tokens=0, echo=True, logprobs=0)
    [choice] = answer.choices
    assert (choice.text, choice.finish_reason) == (served.tokenizer.decode([65, 66]), "length")
    assert choice.logprobs is not None
    assert choice.logprobs.token_logprobs == [None, -0.66]
    assert answer.usage is not None
    assert (answer.usage.prompt_tokens, answer.usage.completion_tokens) == (2, 0)


async def test_log_probabilities_of_the_prompt_are_by_token_id_as_in_vllm(served: ServedGateway) -> None:
    extra = {"prompt_logprobs": 1}
    answer = await served.client.completions.create(model="tiny", prompt=[65, 70], max_tokens=1, extra_body=extra)
    named = [served.tokenizer.decode([id]) for id in (70, 66)]
    assert answer.choices[0].model_dump()["prompt_logprobs"] == [
        None,
        {
            "70": {"logprob": -0.7, "rank": 9, "decoded_token": named[0]},
            "66": {"logprob": 0.0, "rank": 1, "decoded_token": named[1]},
        },
    ]
    chat = await served.client.chat.completions.create(model="tiny", messages=HELLO, max_tokens=1, extra_body=extra)
    assert len(chat.model_dump()["prompt_logprobs"]) == len(served.cluster.submitted[-1].prompt)


async def test_log_probabilities_of_the_prompt_are_null_where_nobody_asks_as_in_vllm(served: ServedGateway) -> None:
    answer = await served.client.completions.create(model="tiny", prompt=[65, 70], max_tokens=1)
    assert answer.choices[0].model_dump()["prompt_logprobs"] is None
    chat = await served.client.chat.completions.create(model="tiny", messages=HELLO, max_tokens=1)
    assert chat.model_dump()["prompt_logprobs"] is None


async def test_tokens_may_be_named_by_their_ids(served: ServedGateway) -> None:
    extra = {"return_tokens_as_token_ids": True}
    answer = await served.client.completions.create(
        model="tiny", prompt="a", max_tokens=2, logprobs=1, extra_body=extra
    )
    assert answer.choices[0].logprobs is not None
    assert answer.choices[0].logprobs.tokens == ["token_id:65", "token_id:66"]


async def test_a_token_that_is_named_by_its_id_has_the_bytes_of_its_text(served: ServedGateway) -> None:
    answer = await served.client.chat.completions.create(
        model="tiny", messages=HELLO, max_tokens=1, logprobs=True, extra_body={"return_tokens_as_token_ids": True}
    )
    assert answer.choices[0].logprobs is not None
    [entry] = answer.choices[0].logprobs.content or []
    assert entry.token == "token_id:65"
    assert bytes(entry.bytes or []).decode() == served.tokenizer.decode([65])


async def test_without_being_asked_nothing_is_told(served: ServedGateway) -> None:
    answer = await served.client.chat.completions.create(model="tiny", messages=HELLO, max_tokens=2)
    assert answer.choices[0].logprobs is None
    assert served.cluster.submitted[0].sampling.logprobs is None


async def test_log_probabilities_are_whole_though_a_worker_is_lost(served: ServedGateway) -> None:
    served.cluster.lost_at = {1: 2}
    answer = await served.client.completions.create(model="tiny", prompt="a", max_tokens=5, logprobs=0)
    assert answer.choices[0].logprobs is not None
    assert answer.choices[0].logprobs.token_logprobs == [-0.65, -0.66, -0.67, -0.65, -0.66]


async def test_bad_words_go_out_as_tokens(served: ServedGateway) -> None:
    extra = {"bad_words": ["bad"]}
    await served.client.completions.create(model="tiny", prompt="a", max_tokens=1, extra_body=extra)
    plain = served.tokenizer.encode("bad", add_special_tokens=False).ids
    assert served.cluster.submitted[0].sampling.bad_words[0] == plain


@pytest.mark.parametrize(("stop", "reason"), [({"stop_token_ids": [66]}, 66), ({"stop": "B"}, "B")])
async def test_what_of_the_clients_ended_the_text_is_told(
    served: ServedGateway, stop: dict[str, object], reason: object
) -> None:
    served.says("ABC")
    if isinstance(reason, int):
        served.cluster.output = [65, 66, 67]
    answer = await served.client.completions.create(model="tiny", prompt="a", max_tokens=9, extra_body=stop)
    assert answer.choices[0].finish_reason == "stop"
    assert answer.choices[0].model_dump()["stop_reason"] == reason


@pytest.mark.parametrize(
    ("extra", "param"),
    [
        ({"n": 200}, "n"),
        ({"n": 100, "best_of": 99}, "best_of"),
        ({"logit_bias": {"999999": 1}}, "logit_bias"),
        ({"stop": ["s"] * 10_000}, "stop"),
        ({"bad_words": ["b" * 1_000] * 5}, "bad_words"),
        ({"bad_words": ["fine", " "]}, "bad_words"),
        ({"allowed_token_ids": [999_999]}, "allowed_token_ids"),
    ],
)
async def test_what_cannot_be_is_refused_by_name(served: ServedGateway, extra: dict[str, object], param: str) -> None:
    with pytest.raises(openai.BadRequestError) as refused:
        await served.client.completions.create(model="tiny", prompt="a", extra_body=extra)
    assert refused.value.param == param
    assert not served.cluster.submitted


async def test_a_prompt_is_scored_once_for_all_its_choices(served: ServedGateway) -> None:
    extra = {"prompt_logprobs": 1}
    answer = await served.client.completions.create(model="tiny", prompt=[65, 70], max_tokens=1, n=3, extra_body=extra)
    told = [choice.model_dump()["prompt_logprobs"] for choice in answer.choices]
    assert told[0][1] is not None
    assert told == [told[0]] * 3
    assert [submit.prompt_logprobs is not None for submit in served.cluster.submitted] == [True, False, False]
    echoed = await served.client.completions.create(
        model="tiny", prompt=[65, 70], max_tokens=1, n=2, echo=True, logprobs=1
    )
    assert [len(choice.logprobs.tokens or []) for choice in echoed.choices if choice.logprobs] == [3, 3]


async def test_later_choices_wait_where_the_first_was_taken(served: ServedGateway) -> None:
    """They would be refused after the answer has begun, as if none had been made."""
    first = served.cluster.hang_before(0)
    asking = asyncio.ensure_future(served.client.completions.create(model="tiny", prompt="abc", max_tokens=2, n=3))
    await eventually(lambda: len(served.cluster.submitted) == 1)
    served.cluster.refusal = Refusal(429, "the queue is full", 10)
    first.set_result(None)
    await eventually(lambda: served.cluster.refused >= 2)
    served.cluster.refusal = None
    assert [choice.finish_reason for choice in (await asking).choices] == ["length"] * 3
