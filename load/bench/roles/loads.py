"""What `livescale bench roles` asks for, the same in every run. Pure."""

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from livescale.load.records import Ask

CONTEXT = 1_024
PROMPT = 384
OUTPUT = 128  # of a mixed load: the gap before the second token is less than one in a hundred
MOST_LOAD = 0.5  # of the prompts that one instance computes, of a mixed load
GAPS = 2_000  # of a run, at least
LONE, BACK_TO_BACK = 8, 12  # requests
# So long that the link is idle for longer than LATE_SECONDS between two layers of it: a message that comes sooner is
# taken for one that should have followed at once, and leaves early.
LONE_PROMPT = 896
LONE_ROWS, ROWS = 1_024, 512  # of a step, at most: prompts that are alone are computed in one
# Short requests while roles change: how many, how long, and how far apart. Together they are no load to speak of: where
# anything waits at an instance, it takes no reservation. They outlast two of a worker's reports.
FLOW, FLOW_PROMPT, FLOW_SECONDS = 75, 4, 0.02
FLOW_BEFORE = 10  # of these are sent before the order


@dataclass(frozen=True)
class RolesLoads:
    """The requests of every part. Those of a part are never asked for at the same time as those of another.

    `lone`: one at a time. `unsent`: prompts whose KV stays where it is, as they have one token of output. `sent`: the
    same prompts with a second token. `mixed`: prompts come while others decode, at times that are still to be set.
    `flow`: short requests at a steady pace.
    """

    lone: Sequence[Ask]
    unsent: Sequence[Ask]
    sent: Sequence[Ask]
    mixed: Sequence[Ask]
    flow: Sequence[Ask]

    def __iter__(self) -> Iterator[Ask]:
        yield from (*self.lone, *self.unsent, *self.sent, *self.mixed, *self.flow)


def roles_loads() -> RolesLoads:
    """Greedy requests. Those of `unsent` and `sent` have the same prompts."""
    mixed = -(-GAPS // (OUTPUT - 1))
    return RolesLoads(
        lone=[_ask(index, LONE_PROMPT, 2) for index in range(LONE)],
        unsent=[_ask(100 + index, PROMPT, 1) for index in range(BACK_TO_BACK)],
        sent=[_ask(200 + index, PROMPT, 2, prompt_of=100 + index) for index in range(BACK_TO_BACK)],
        mixed=[_ask(300 + index, PROMPT, OUTPUT) for index in range(mixed)],
        flow=[_ask(400 + index, FLOW_PROMPT, 2, at=index * FLOW_SECONDS) for index in range(FLOW)],
    )


def _ask(index: int, prompt_tokens: int, max_tokens: int, at: float = 0.0, prompt_of: int | None = None) -> Ask:
    chance = random.Random(index if prompt_of is None else prompt_of)
    return Ask(index, at, chance.choices(range(1_000), k=prompt_tokens), max_tokens)


def mixed_load(asks: Sequence[Ask], rate: float) -> list[Ask]:
    """Poisson arrivals, the same at every call but for their pace: so many prompts that one instance would be busy with
    `MOST_LOAD` of its time, where it computes `rate` rows of prompts a second."""
    chance, at, due = random.Random(0), 0.0, list[Ask]()
    for ask in asks:
        due.append(Ask(ask.index, at, ask.prompt, ask.max_tokens))
        at += chance.expovariate(MOST_LOAD * rate / len(ask.prompt))
    return due
