"""The requests of a random system: in bursts, or in a crowd without a pause."""

from collections.abc import Sequence
from random import Random

import msgspec
from msgspec.structs import replace

from livescale.load.records import Ask
from livescale.load.simulate.seeds.random_models import VOCABULARY
from livescale.shared.messages.requests import PromptLogprobs, Submit

PATIENCE_SECONDS = 300.0  # of most clients, who wait longer than any system may take to recover
LOAD_SECONDS = 6.0  # in which requests are sent
WISHES_SHARE = 0.2  # of all seeds
MOST_MIN_TOKENS = 8


class Wishes(msgspec.Struct, frozen=True, kw_only=True):
    """What a client asks for beside so many tokens; the names are those of a `Submit`. With `logprobs` or
    `prompt_logprobs` it is told of so many of the likeliest tokens in each place."""

    stop_token_ids: list[int] = []
    min_tokens: int = 0
    priority: int = 0
    context_id: str | None = None
    cache_salt: str | None = None
    logprobs: int | None = None
    prompt_logprobs: int | None = None
    pools: bool = False

    def of(self, submit: Submit) -> Submit:
        """The request with what is wished."""
        scores = None if self.prompt_logprobs is None else PromptLogprobs(top=self.prompt_logprobs)
        return replace(
            submit,
            stop_token_ids=self.stop_token_ids,
            min_tokens=self.min_tokens,
            priority=self.priority,
            context_id=self.context_id,
            cache_salt=self.cache_salt,
            sampling=replace(submit.sampling, logprobs=self.logprobs, pools=self.pools),
            prompt_logprobs=scores,
        )


class SeedAsk(msgspec.Struct, frozen=True):
    """A request for `model`, with an `adapter` or none. Its first `shared` prompt tokens are those of others, too.

    Its client waits for `patience` seconds, and leaves after `leaves` seconds, None being never.
    """

    model: str
    ask: Ask
    shared: int = 0
    patience: float = PATIENCE_SECONDS
    leaves: float | None = None
    wishes: Wishes = Wishes()
    adapter: str | None = None


def has_wishes(seed: int) -> bool:
    """Whether clients of the system of a seed ask for more than tokens, and its operator has unusual settings."""
    return Random(f"wishes {seed}").random() < WISHES_SHARE


def with_wishes(chance: Random, asks: Sequence[SeedAsk]) -> list[SeedAsk]:
    """The same requests, with what some of their clients wish."""
    return [replace(ask, wishes=random_wishes(chance, ask.ask.max_tokens)) for ask in asks]


def random_wishes(chance: Random, max_tokens: int) -> Wishes:
    stops: list[int] = []
    if chance.random() < 0.5:
        stops = chance.sample(range(VOCABULARY), chance.choice((5, 20, 100)))
    scores = chance.random() < 0.3
    return Wishes(
        stop_token_ids=stops,
        min_tokens=chance.choice((0, 0, 1, 8)) if stops and max_tokens >= MOST_MIN_TOKENS else 0,
        priority=chance.choice((0, 0, 0, -1, 1, 1_000)),
        context_id=chance.choice((None, None, "a", "b")),
        cache_salt=chance.choice((None, None, None, "x")),
        logprobs=chance.choice((0, 2)) if scores else None,
        prompt_logprobs=chance.choice((0, 2)) if scores and chance.random() < 0.5 else None,
    )


def random_asks(chance: Random, models: Sequence[str]) -> list[SeedAsk]:
    """Requests in bursts: of each burst many are under way at once."""
    common = chance.choices(range(VOCABULARY), k=200)
    asks: list[SeedAsk] = []
    for _ in range(chance.randint(1, 4)):
        begins, model = chance.uniform(0.0, LOAD_SECONDS), chance.choice(models)
        longest = chance.choice((40, 200, 600))
        for _ in range(chance.choice((1, 4, 8, 16, 24))):
            begins += chance.uniform(0.0, 0.1)
            asks.append(random_ask(chance, len(asks), begins, model, longest, common))
    return asks


def random_ask(chance: Random, index: int, at: float, model: str, longest: int, common: list[int]) -> SeedAsk:
    own = chance.choices(range(VOCABULARY), k=chance.randint(4, longest))
    shared = chance.choice((0, 0, 64, 200))
    ask = Ask(index, at, common[:shared] + own, chance.choice((1, 2, 8, 30, 60, 120)), 0.8 * (index % 2), index)
    kind = chance.random()
    if kind < 0.04:
        return SeedAsk(model, ask, shared, patience=chance.uniform(0.2, 4.0))
    if kind < 0.08:
        return SeedAsk(model, ask, shared, leaves=chance.uniform(0.1, 2.0))
    return SeedAsk(model, ask, shared)


def crowd_asks(chance: Random, models: Sequence[str]) -> list[SeedAsk]:
    """Requests one after the other, for about as long as a story lasts."""
    common = chance.choices(range(VOCABULARY), k=200)
    pause, longest = chance.choice((0.08, 0.12, 0.2)), chance.choice((40, 200, 600))
    asks: list[SeedAsk] = []
    for index in range(int(LOAD_SECONDS / pause)):
        shared = chance.choice((0, 0, 64, 200))
        prompt = common[:shared] + chance.choices(range(VOCABULARY), k=chance.randint(4, longest))
        tokens = chance.choice((8, 30, 60, 120, 120))
        ask = Ask(index, pause * (index + chance.random()), prompt, tokens, 0.8 * (index % 2), index)
        leaves = chance.uniform(0.1, 2.0) if chance.random() < 0.05 else None
        asks.append(SeedAsk(chance.choice(models), ask, shared, leaves=leaves))
    return asks
