"""Asks a server for what must be known of its model before requests can be made up."""

import random
from typing import TypeVar

import aiohttp
import msgspec

from livescale.load.records import Ask
from livescale.load.trace import Trace, fit

T = TypeVar("T")
MOST_LETTERS = 300
# Ordinary text: its tokens are a sample of any model's vocabulary that needs no special tokens.
SAMPLE = (
    "When many people ask at once, the answer should not take longer. A burst of requests comes without warning: "
    "ten in one second, two hundred in the next. Some ask for 3 words, others for 1,500; a few send code such as "
    "for (int i = 0; i < n; i++) { total += price[i] * 0.97; } and want it explained. Nobody waits gladly. "
    "The quick brown fox jumps over the lazy dog, while five wizards vex the bold queen's zany jackal."
)


class TargetError(Exception):
    """The server cannot be used: absent, or without the model."""


class ServedModelStatus(msgspec.Struct, frozen=True):
    """What our own server says of a model besides."""

    warning: str | None = None


class ServedModelCard(msgspec.Struct, frozen=True):
    """The fields of an entry of /v1/models that are used here."""

    id: str
    max_model_len: int
    livescale: ServedModelStatus = ServedModelStatus()


class ServedModels(msgspec.Struct, frozen=True):
    """The answer of GET /v1/models, as far as load needs it."""

    data: list[ServedModelCard]


class TokenizedText(msgspec.Struct, frozen=True):
    """The answer of POST /tokenize, as far as load needs it."""

    tokens: list[int]


class FailureDetail(msgspec.Struct, frozen=True):
    """What the body of a refusal says went wrong."""

    message: str


class Failure(msgspec.Struct, frozen=True):
    """What an OpenAI server answers where it cannot serve."""

    error: FailureDetail


class LoadTarget(msgspec.Struct, frozen=True):
    """A model that is served: its context in tokens, and ids of ordinary tokens to make prompts of. `warning`: what
    must be said beside any figure of it."""

    model: str
    context: int
    vocabulary: list[int]
    warning: str | None = None


async def learn_target(session: aiohttp.ClientSession, model: str | None) -> LoadTarget:
    """Ask the server for `model`, or for the only one it has. Raises TargetError."""
    cards = (await fetch_json(session, "GET", "v1/models", None, ServedModels)).data
    card = choose(cards, model)
    # Special tokens would end up in the middle of prompts.
    body = msgspec.json.encode({"model": card.id, "prompt": SAMPLE, "add_special_tokens": False})
    sample = await fetch_json(session, "POST", "tokenize", body, TokenizedText)
    return LoadTarget(card.id, card.max_model_len, sorted(set(sample.tokens)), card.livescale.warning)


def choose(cards: list[ServedModelCard], model: str | None) -> ServedModelCard:
    names = ", ".join(card.id for card in cards) or "none"
    fitting = [card for card in cards if model in (None, card.id)]
    if model is not None and not fitting:
        raise TargetError(f"the server has no model {model!r}; it has: {names}")
    if len(fitting) != 1:
        raise TargetError(f"the server has several models; choose one with --model: {names}")
    return fitting[0]


async def fetch_json(session: aiohttp.ClientSession, method: str, path: str, body: bytes | None, kind: type[T]) -> T:
    headers = {"content-type": "application/json"} if body else {}
    timeout = aiohttp.ClientTimeout(total=30)
    try:
        async with session.request(method, path, data=body, headers=headers, timeout=timeout) as response:
            answer = await response.read()
    except (aiohttp.ClientError, OSError, TimeoutError) as error:
        raise TargetError(f"no answer from /{path}: {error or type(error).__name__}") from error
    if response.status != 200:
        raise TargetError(f"/{path} answered {response.status}: {tell_body(response.content_type, answer)}")
    try:
        return msgspec.json.decode(answer, type=kind)
    except msgspec.DecodeError as error:
        raise TargetError(
            f"/{path} did not answer as an OpenAI server does ({error}); is it another server's URL?"
        ) from error


def tell_body(content_type: str, body: bytes) -> str:
    """The error that an OpenAI server gives, or a word on what this is instead: a page of HTML says nothing here."""
    try:
        return msgspec.json.decode(body, type=Failure).error.message[:MOST_LETTERS]
    except msgspec.DecodeError:
        pass
    if content_type in ("text/plain", "application/json"):
        return body[:MOST_LETTERS].decode(errors="replace")
    return f"{content_type}, as no OpenAI server does; is it another server's URL?"


def make_asks(trace: Trace, target: LoadTarget, seed: int) -> list[Ask]:
    """Requests for a trace: random prompts over the model's vocabulary, cut to its context. Same seed, same prompts."""
    chance = random.Random(seed)
    return [
        Ask(index, arrival.at, chance.choices(target.vocabulary, k=arrival.prompt_tokens), arrival.output_tokens)
        for index, arrival in enumerate(fit(trace, target.context))
    ]
