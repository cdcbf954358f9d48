"""What all objects of one answer share: its id, its usage, how tokens are told, what comes before them, and how many
make an event. Pure."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
from msgspec import UNSET, UnsetType
from msgspec.structs import fields, replace

from livescale.services.gateway.bodies import (
    ChatRequest,
    CompletionRequest,
    GenerationOptions,
    asked_logprobs,
    only_prompt,
)
from livescale.services.gateway.logprobs import (
    ChatLogprobs,
    CompletionLogprobs,
    PromptLogprobList,
    PromptNames,
    TokenNames,
)
from livescale.services.gateway.output import Decode, StopReason, TextPiece, WholeChoice, certain_part
from livescale.services.gateway.tool_calls.message import Delta


class PromptTokensDetails(msgspec.Struct, frozen=True):
    """`cached_tokens` of the prompt did not have to be computed."""

    cached_tokens: int


class CompletionTokensDetails(msgspec.Struct, frozen=True):
    """`reasoning_tokens` were generated before the answer proper."""

    reasoning_tokens: int


class Usage(msgspec.Struct, frozen=True):
    """The numbers of tokens, of all choices together. Details of the completion are there where reasoning is told
    apart."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptTokensDetails
    completion_tokens_details: CompletionTokensDetails | UnsetType = UNSET


class Envelope(msgspec.Struct, frozen=True):
    """The fields that all objects of one answer share. With `usage_follows`, chunks say `usage: null` until the last
    one; with `continuous` each says the usage so far. `names` are there where log-probabilities are told,
    `prompt_names` where those of the prompt are, `prompt_text` where the rendered messages are. `fingerprint` says
    what began the answer, once it has begun."""

    id: str
    created: int
    model: str
    token_ids: bool
    usage_follows: bool
    names: TokenNames | None = None
    prompt_names: PromptNames | None = None
    continuous: bool = False
    prompt_text: str | None = None
    fingerprint: str | None = None
    so_far: Usage | None = None

    def with_usage(self, so_far: Usage) -> "Envelope":
        """The same for a chunk that says the usage so far."""
        return replace(self, so_far=so_far)

    def made_by(self, fingerprint: str | None) -> "Envelope":
        """The same for an answer that this version of the model has begun."""
        return replace(self, fingerprint=fingerprint)

    @property
    def usage(self) -> Usage | UnsetType | None:
        """The `usage` of a chunk that is not the last: so far, null where it follows later, otherwise absent."""
        return UNSET if self.so_far is None and not self.usage_follows else self.so_far

    def ids(self, token_ids: Sequence[int]) -> list[int] | None:
        """The token ids where the client asked for them, otherwise null."""
        return list(token_ids) if self.token_ids else None

    def piece_ids(self, token_ids: Sequence[int]) -> list[int] | UnsetType:
        """The token ids where the client asked for them, otherwise nothing: a stream says no null in every event."""
        return list(token_ids) if self.token_ids else UNSET

    def says_nothing(self, piece: TextPiece) -> bool:
        """Whether the piece needs no event: its text is held back."""
        told = self.token_ids or (self.names is not None and piece.logprobs)
        said = piece.text or piece.reasoning or piece.calls
        return not said and piece.finish_reason is None and not told

    def chat_logprobs(self, told: TextPiece | WholeChoice) -> ChatLogprobs | None:
        """The log-probabilities of a chat's tokens, where the client asked for them."""
        return None if self.names is None else self.names.of_chat(told.token_ids, told.logprobs)

    def completion_logprobs(self, told: TextPiece | WholeChoice, offset: int = 0) -> CompletionLogprobs | None:
        """The log-probabilities of a completion's tokens that begin at `offset`, where the client asked for them."""
        if self.names is None:
            return None
        return self.names.of_completion([*told.echoed, *told.token_ids], told.logprobs, offset)

    def prompt_logprobs(self, told: WholeChoice) -> PromptLogprobList | None:
        """The log-probabilities of the prompt, where the client asked for them."""
        return None if self.prompt_names is None else self.prompt_names.of(told)


@dataclass(frozen=True)
class Echo:
    """One prompt, its `text` and its tokens. `top` is there where log-probabilities are told: so many of the likeliest.
    With `alone` nothing follows it: what was generated is dropped."""

    text: str
    prompt: Sequence[int]
    top: int | None
    alone: bool

    @classmethod
    def of(cls, decode: Decode, prompt: Sequence[int], top: int | None, alone: bool) -> "Echo":
        """The echo of these tokens. A character that they begin comes with the answer, where there is one."""
        text = decode(prompt)
        return cls(text if alone else certain_part(text), prompt, top, alone)

    def first(self, piece: TextPiece) -> TextPiece:
        """The first piece of the answer, after the prompt."""
        piece = self.later(piece)
        if self.top is None:
            return replace(piece, text=self.text + piece.text)
        told = (replace(one, top=one.top[: self.top]) for one in piece.prompt_logprobs)
        return replace(
            piece,
            text=self.text + piece.text,
            echoed=tuple(self.prompt),
            logprobs=(None, *told, *piece.logprobs),  # of the first token nothing is known
        )

    def later(self, piece: TextPiece) -> TextPiece:
        """Return a later piece of the answer, in which nothing of the prompt is repeated."""
        if not self.alone:
            return piece
        reason: StopReason | None = None if piece.finish_reason is None else "length"
        return TextPiece("", (), reason, prompt_logprobs=piece.prompt_logprobs)


ENDS = frozenset(("finish_reason", "stop_reason"))


class EventInterval:
    """Holds pieces back until they have so many `tokens`, but never the first one or the last one."""

    def __init__(self, tokens: int) -> None:
        self._tokens = tokens
        self._held: list[TextPiece] = []
        self._begun = False

    def add(self, piece: TextPiece) -> TextPiece | None:
        """The piece to send now, None where it is to wait."""
        if not self._held and len(piece.token_ids) >= self._tokens:
            self._begun = True
            return piece
        self._held.append(piece)
        enough = sum(len(one.token_ids) for one in self._held) >= self._tokens
        if self._begun and not enough and piece.finish_reason is None:
            return None
        self._begun = True
        pieces, self._held = self._held, []
        return joined(pieces)


def joined(pieces: Sequence[TextPiece]) -> TextPiece:
    """One piece that says what these say one after the other. How it ends is what the last one says."""
    last = pieces[-1]
    if len(pieces) == 1:
        return last
    whole: dict[str, Any] = {}
    for field in fields(TextPiece):
        values = [getattr(piece, field.name) for piece in pieces]
        match getattr(last, field.name):
            case _ if field.name == "calls":
                delta = Delta()
                for call in (call for value in values for call in value):
                    delta.add_call(call)
                whole[field.name] = tuple(delta.calls)
            case str() if field.name not in ENDS:
                whole[field.name] = "".join(values)
            case tuple():
                whole[field.name] = tuple(one for value in values for one in value)
            case end:
                whole[field.name] = end
    return TextPiece(**whole)


def envelope_of(
    body: GenerationOptions, token_text: Callable[[int], str], said: str | None, id: str, created: int
) -> Envelope:
    """Return what all objects of a request's answer share. `token_text` tells tokens as text; `said` is the text of a
    conversation."""
    options = body.stream_options
    names = TokenNames(token_text, body.return_tokens_as_token_ids)
    of_prompt = body.prompt_logprobs
    return Envelope(
        id=id,
        created=created,
        model=body.model,
        token_ids=body.return_token_ids,
        usage_follows=options is not None and options.include_usage,
        continuous=options is not None and options.include_usage and options.continuous_usage_stats,
        prompt_names=None if of_prompt is None else PromptNames(TokenNames(token_text), of_prompt),
        names=None if asked_logprobs(body) is None else names,
        prompt_text=said if isinstance(body, ChatRequest) and body.return_prompt_text else None,
    )


def echoes_of(body: GenerationOptions, prompts: list[list[int]], decode: Decode) -> list[Echo]:
    """What is to come before the answer to each prompt, where the body asks for it. `decode` reads tokens."""
    if isinstance(body, CompletionRequest) and body.echo:
        top, alone = asked_logprobs(body), only_prompt(body)
        return [Echo.of(decode, prompt, top, alone) for prompt in prompts]
    if isinstance(body, ChatRequest) and body.echo and body.messages[-1].role == "assistant":
        return [Echo(body.messages[-1].text, [], None, False)]
    return []
