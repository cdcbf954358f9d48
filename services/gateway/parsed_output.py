"""How the tokens of one choice become pieces of its message: content, reasoning and calls. Pure."""

import hashlib
from array import array
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import msgspec

from livescale.services.gateway.constraints import Constraint
from livescale.services.gateway.envelope import joined
from livescale.services.gateway.output import Output, StopReason, TextPiece
from livescale.services.gateway.progress import Fresh
from livescale.services.gateway.tool_calls.formats import OPENED
from livescale.services.gateway.tool_calls.machine import Format, Machine, markers
from livescale.services.gateway.tool_calls.message import Calls, Delta, ParameterTypes

SHORT_ID = 9  # what Mistral's templates take


@dataclass(frozen=True)
class Telling:
    """What a client is told of an answer: `several` calls, or only the first; its reasoning where it is `shown`.
    `called` is why an answer with calls ended where it ended by itself."""

    several: bool = True
    shown: bool = True
    called: StopReason = "tool_calls"


class ParsedOutput:
    """Turns the tokens of one request into pieces of its message.

    The text goes through one machine after the other; each reads the content that the one before leaves. What comes of
    it does not depend on how many tokens come at once.
    """

    def __init__(self, text: Output, machines: Sequence[Machine], telling: Telling) -> None:
        self._text = text
        self._machines = machines
        self._telling = telling
        self.reasoning_tokens: int | None = 0

    def feed(self, fresh: Fresh) -> TextPiece:
        """Return the next piece. A token that is generated while the answer reasons is one of its reasoning."""
        if len(fresh.token_ids) <= 1:
            return self._feed_one(fresh)
        pieces: list[TextPiece] = []
        for one in _one_by_one(fresh):
            pieces.append(self._feed_one(one))
            if pieces[-1].finish_reason is not None:
                break
        return joined(pieces)

    def _feed_one(self, fresh: Fresh) -> TextPiece:
        reasons = any(machine.reasons for machine in self._machines)
        piece = self._text.feed(fresh)
        if reasons and self.reasoning_tokens is not None:
            self.reasoning_tokens += len(piece.token_ids)
        over = piece.finish_reason is not None
        delta = Delta(content=piece.text)
        for machine in self._machines:
            text, delta.content = delta.content, ""
            machine.feed(text, delta)
            if over:
                machine.flush(delta)
        if not over and not delta.reasoning and not delta.calls and delta.content == piece.text:
            return piece
        called = piece.finish_reason == "stop" and any(machine.calls.count for machine in self._machines)
        return TextPiece(
            delta.content,
            piece.token_ids,
            self._telling.called if called else piece.finish_reason,
            piece.stop_reason,
            piece.logprobs,
            piece.prompt_logprobs,
            piece.echoed,
            delta.reasoning if self._telling.shown else "",
            tuple(call for call in delta.calls if self._telling.several or call.index == 0),
        )


def _one_by_one(fresh: Fresh) -> Iterator[Fresh]:
    last = len(fresh.token_ids) - 1
    for index, token_id in enumerate(fresh.token_ids):
        yield msgspec.structs.replace(
            fresh,
            token_ids=(token_id,),
            finish_reason=fresh.finish_reason if index == last else None,
            logprobs=fresh.logprobs[index : index + 1],
            prompt_logprobs=fresh.prompt_logprobs if index == 0 else (),
        )


def call_ids(origin: str, prompt: Sequence[int], choice: int, *, short: bool) -> Callable[[int], str]:
    """The ids of an answer's calls by their index: always the same for the same request, and different for the next
    one of a conversation, as its prompt is longer."""

    def call_id(index: int) -> str:
        digest = hashlib.blake2b(f"{origin}:{choice}:{index}:".encode(), digest_size=12)
        digest.update(array("I", prompt).tobytes())
        return digest.hexdigest()[:SHORT_ID] if short else f"call_{digest.hexdigest()}"

    return call_id


@dataclass(frozen=True)
class Reading:
    """The formats by which answers are read, one after the other. `types` are those of the tools' parameters. The
    prompt may have `opened` the reasoning. Ids of calls are made from `origin`.

    Where the client names a tool, its answers are the arguments of the tool `named`. Where answers are held to a form
    there is a `grammar`, and the `constraint` by which it is tried.
    """

    formats: tuple[Format, ...]
    types: ParameterTypes
    telling: Telling
    origin: str
    opened: bool = False
    short_ids: bool = False
    named: str = ""
    constraint: Constraint | None = None
    grammar: str = ""

    @property
    def markers(self) -> frozenset[str]:
        """Return the texts that begin or end parts in any format of the request's model."""
        return frozenset().union(*map(markers, self.formats))

    def output(self, text: Output, prompt: Sequence[int], choice: int) -> ParsedOutput:
        """Make the reader of one choice of the answer."""
        ids = call_ids(self.origin, prompt, choice, short=self.short_ids)
        machines = [Machine(format, Calls(self.types, ids, self.named)) for format in self.formats]
        if self.opened:
            machines[0].state = OPENED
        return ParsedOutput(text, machines, self.telling)
