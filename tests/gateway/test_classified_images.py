"""A model of images as clients ask it: by /classify alone, with images in data URLs."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from livescale.services.gateway.image_process import decode
from livescale.shared.messages.images import Images
from livescale.shared.messages.requests import Submit, TokenLogprobs
from livescale.shared.model.checkpoint import load_model_config
from tests.checkpoints import tiny_checkpoint
from tests.gateway.conftest import ServedGateway, serve_gateway
from tests.gateway.test_image_process import FILES

PNG, JPEG = (f"data:image/{name};base64,{FILES[name]}" for name in ("png", "jpeg"))
PATHS = ("/classify", "/v1/classify")


def scores(request: Submit) -> list[TokenLogprobs]:
    """Five scores that depend on the pixels."""
    numbers = np.frombuffer(request.pixels, np.uint8)[:5]
    return [TokenLogprobs(0.0, pooled=(numbers / 64).astype("<f4").tobytes())]


@pytest.fixture
async def sight() -> AsyncIterator[ServedGateway]:
    async with serve_gateway(tiny_checkpoint("vit")) as opened:
        opened.cluster.pooled = scores
        yield opened


def images_of(checkpoint: Path) -> Images:
    images = load_model_config(checkpoint).images
    assert images is not None
    return images


def message(*parts: dict[str, Any]) -> list[dict[str, Any]]:
    return [{"role": "user", "content": [*parts]}]


def picture(url: str) -> dict[str, Any]:
    return {"type": "image_url", "image_url": {"url": url, "detail": "auto"}}


@pytest.mark.parametrize("path", PATHS)
async def test_each_image_gets_the_likelihoods_of_all_labels(sight: ServedGateway, path: str) -> None:
    status, answer = await sight.post(path, {"model": "tiny", "input": [PNG, JPEG]})
    assert status == 200
    images, sent = images_of(tiny_checkpoint("vit")), sight.cluster.submitted
    assert [one.pixels for one in sent] == [decode(FILES[name], images).pixels for name in ("png", "jpeg")]
    assert [(one.prompt, one.sampling.pools, one.max_tokens) for one in sent] == [([0] * images.rows, True, 1)] * 2
    for told, request in zip(answer["data"], sent, strict=True):
        powers = np.exp(np.frombuffer(request.pixels, np.uint8)[:5] / 64)
        assert told["probs"] == pytest.approx(powers / powers.sum(), abs=1e-6)
        assert told["num_classes"] == 5
        assert told["label"] == ["bird", "cat", "dog", "fish", "horse"][int(powers.argmax())]
    assert answer["usage"]["prompt_tokens"] == 2 * images.rows


async def test_an_image_may_come_as_a_chat_has_it(sight: ServedGateway) -> None:
    _, asked = await sight.post("/classify", {"input": PNG, "use_activation": False})
    status, answer = await sight.post("/classify", {"messages": message(picture(PNG)), "use_activation": False})
    assert (status, answer["data"]) == (200, asked["data"])


async def test_an_image_that_loses_its_worker_is_asked_again(sight: ServedGateway) -> None:
    sight.cluster.lost_at = {1: 0}
    status, _ = await sight.post("/classify", {"input": PNG})
    first, second = sight.cluster.submitted
    assert (status, first.pixels) == (200, second.pixels)


@pytest.mark.parametrize(
    ("body", "param", "said"),
    [
        ({}, "input", "Give images either in 'input' or in 'messages'"),
        ({"input": PNG, "messages": message(picture(PNG))}, "input", "either in 'input' or in 'messages'"),
        ({"input": []}, "input", "must be 1 to 2048 images as data URLs"),
        ({"input": [1, 2]}, "input", "this model takes no texts"),
        ({"input": "a cat"}, "input", "must have images as data URLs"),
        ({"input": [PNG, "http://example.org/a.png"]}, "input", "nothing is fetched from other URLs"),
        ({"messages": message(picture("file:///etc/passwd"))}, "messages", "nothing is fetched"),
        ({"messages": message(picture(PNG), picture(PNG))}, "messages[0].content", "length <= 1"),
        (
            {"messages": message({"type": "text", "text": "What is it?"})},
            "messages[0].content[0].type",
            "Only images are understood",
        ),
    ],
)
async def test_what_is_no_image_is_refused_by_name(
    sight: ServedGateway, body: dict[str, Any], param: str, said: str
) -> None:
    status, answer = await sight.post("/v1/classify", body)
    assert (status, answer["error"]["param"]) == (400, param)
    assert said in answer["error"]["message"]
    assert sight.cluster.submitted == []


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/pooling", {"input": "a"}),
        ("/score", {"text_1": "a", "text_2": "b"}),
        ("/rerank", {"query": "a", "documents": ["b"]}),
        ("/v1/embeddings", {"input": "a"}),
        ("/v1/completions", {"prompt": "a"}),
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": "a"}]}),
        ("/tokenize", {"prompt": "a"}),
        ("/detokenize", {"tokens": [0]}),
    ],
)
async def test_endpoints_of_texts_refuse_the_model(sight: ServedGateway, path: str, body: dict[str, Any]) -> None:
    status, answer = await sight.post(path, {"model": "tiny", **body})
    assert (status, answer["error"]["code"]) == (400, "wrong_use_of_model")
    assert "/classify" in answer["error"]["message"]


async def test_a_model_of_texts_is_asked_for_texts(served: ServedGateway) -> None:
    status, answer = await served.post("/classify", {"model": "tiny", "messages": message(picture(PNG))})
    assert (status, answer["error"]["code"]) == (400, "wrong_use_of_model")
