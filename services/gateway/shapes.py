"""How pieces of text look to clients: OpenAI's objects of both endpoints, streamed and whole. Pure."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal, Protocol

import msgspec
from msgspec import UNSET, UnsetType

from livescale.services.gateway.logprobs import ChatLogprobs, CompletionLogprobs, TokenNames
from livescale.services.gateway.output import StopReason, TextPiece, WholeChoice


class PromptTokensDetails(msgspec.Struct, frozen=True):
    """`cached_tokens` of the prompt did not have to be computed."""

    cached_tokens: int


class Usage(msgspec.Struct, frozen=True):
    """The numbers of tokens, of all choices together."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptTokensDetails


class Answer(msgspec.Struct, frozen=True, kw_only=True):
    """The fields that every object of an answer has."""

    id: str
    created: int
    model: str


class CompletionChoice(msgspec.Struct, frozen=True, kw_only=True):
    """One choice of a prompt, or a piece of it in a stream. `token_ids` with `return_token_ids` only; `stop_reason` is
    the stop string or stop token of the client's that ended it."""

    index: int
    text: str
    logprobs: CompletionLogprobs | None = None
    finish_reason: StopReason | None = None
    stop_reason: int | str | None = None
    prompt_token_ids: list[int] | UnsetType = UNSET
    token_ids: list[int] | UnsetType = UNSET


class Completion(Answer, frozen=True, kw_only=True):
    """The answer of /v1/completions, and every event of it when streamed."""

    object: Literal["text_completion"] = "text_completion"
    choices: list[CompletionChoice]
    usage: Usage | UnsetType | None = UNSET


class AssistantMessage(msgspec.Struct, frozen=True, kw_only=True):
    """The message that the model has generated."""

    role: Literal["assistant"] = "assistant"
    content: str


class ChatChoice(msgspec.Struct, frozen=True, kw_only=True):
    """One choice of a chat completion that is not streamed."""

    index: int
    message: AssistantMessage
    logprobs: ChatLogprobs | None = None
    finish_reason: StopReason
    stop_reason: int | str | None = None
    token_ids: list[int] | UnsetType = UNSET


class ChatCompletion(Answer, frozen=True, kw_only=True):
    """The whole answer of /v1/chat/completions."""

    object: Literal["chat.completion"] = "chat.completion"
    choices: list[ChatChoice]
    usage: Usage
    prompt_token_ids: list[int] | UnsetType = UNSET


class ChatDelta(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A piece of the message; the first one has the role."""

    role: Literal["assistant"] | UnsetType = UNSET
    content: str | UnsetType = UNSET


class ChatChunkChoice(msgspec.Struct, frozen=True, kw_only=True):
    """A piece of one choice of a chat's answer."""

    index: int
    delta: ChatDelta
    logprobs: ChatLogprobs | None = None
    finish_reason: StopReason | None = None
    stop_reason: int | str | None = None
    token_ids: list[int] | UnsetType = UNSET


class ChatCompletionChunk(Answer, frozen=True, kw_only=True):
    """Every event of a streamed /v1/chat/completions."""

    object: Literal["chat.completion.chunk"] = "chat.completion.chunk"
    choices: list[ChatChunkChoice]
    usage: Usage | UnsetType | None = UNSET
    prompt_token_ids: list[int] | UnsetType = UNSET


@dataclass(frozen=True)
class Envelope:
    """The fields that all objects of one answer share. With `usage_follows`, chunks say `usage: null` until the last
    one; with `continuous` each says the usage so far. `names` are there where log-probabilities are told."""

    id: str
    created: int
    model: str
    token_ids: bool
    usage_follows: bool
    names: TokenNames | None = None
    continuous: bool = False
    so_far: Usage | None = None

    def with_usage(self, so_far: Usage) -> "Envelope":
        """The same for a chunk that says the usage so far."""
        return replace(self, so_far=so_far)

    @property
    def usage(self) -> Usage | UnsetType | None:
        """The `usage` of a chunk that is not the last: so far, null where it follows later, otherwise absent."""
        return UNSET if self.so_far is None and not self.usage_follows else self.so_far

    def ids(self, token_ids: Sequence[int]) -> list[int] | UnsetType:
        """The token ids where the client asked for them, otherwise nothing."""
        return list(token_ids) if self.token_ids else UNSET

    def says_nothing(self, piece: TextPiece) -> bool:
        """Whether the piece needs no event: its text is held back."""
        told = self.token_ids or (self.names is not None and piece.token_ids)
        return not piece.text and piece.finish_reason is None and not told

    def chat_logprobs(self, told: TextPiece | WholeChoice) -> ChatLogprobs | None:
        """The log-probabilities of a chat's tokens, where the client asked for them."""
        return None if self.names is None else self.names.of_chat(told.token_ids, told.logprobs)

    def completion_logprobs(self, told: TextPiece | WholeChoice, offset: int = 0) -> CompletionLogprobs | None:
        """The log-probabilities of a completion's tokens that begin at `offset`, where the client asked for them."""
        return None if self.names is None else self.names.of_completion(told.token_ids, told.logprobs, offset)


class ResponseShape(Protocol):
    """Makes the objects of one endpoint. `prompt` is given with a choice's first piece only."""

    prefix: str

    def chunks(
        self, envelope: Envelope, index: int, piece: TextPiece, prompt: list[int] | None
    ) -> list[msgspec.Struct]: ...

    def usage_chunk(self, envelope: Envelope, usage: Usage) -> msgspec.Struct: ...

    def whole(self, envelope: Envelope, choices: list[WholeChoice], usage: Usage) -> msgspec.Struct: ...


class CompletionShape:
    """Makes the objects of one /v1/completions, streamed and whole."""

    prefix = "cmpl"

    def __init__(self) -> None:
        self._offsets = Counter[int]()  # of the next token's text, by choice; for log-probabilities only

    def chunks(
        self, envelope: Envelope, index: int, piece: TextPiece, prompt: list[int] | None
    ) -> list[msgspec.Struct]:
        if envelope.says_nothing(piece):
            return []
        choice = CompletionChoice(
            index=index,
            text=piece.text,
            logprobs=envelope.completion_logprobs(piece, self._offsets[index]),
            finish_reason=piece.finish_reason,
            stop_reason=piece.stop_reason,
            prompt_token_ids=UNSET if prompt is None else envelope.ids(prompt),
            token_ids=envelope.ids(piece.token_ids),
        )
        if envelope.names is not None:
            self._offsets[index] += envelope.names.length(piece.token_ids)
        return [self._object(envelope, [choice], envelope.usage)]

    def usage_chunk(self, envelope: Envelope, usage: Usage) -> msgspec.Struct:
        return self._object(envelope, [], usage)

    def whole(self, envelope: Envelope, choices: list[WholeChoice], usage: Usage) -> msgspec.Struct:
        made = [
            CompletionChoice(
                index=index,
                text=choice.text,
                logprobs=envelope.completion_logprobs(choice),
                finish_reason=choice.finish_reason,
                stop_reason=choice.stop_reason,
                prompt_token_ids=envelope.ids(choice.prompt),
                token_ids=envelope.ids(choice.token_ids),
            )
            for index, choice in enumerate(choices)
        ]
        return self._object(envelope, made, usage)

    def _object(
        self, envelope: Envelope, choices: list[CompletionChoice], usage: Usage | UnsetType | None
    ) -> Completion:
        return Completion(id=envelope.id, created=envelope.created, model=envelope.model, choices=choices, usage=usage)


class ChatShape:
    """Makes the objects of /v1/chat/completions, streamed and whole."""

    prefix = "chatcmpl"

    def chunks(
        self, envelope: Envelope, index: int, piece: TextPiece, prompt: list[int] | None
    ) -> list[msgspec.Struct]:
        chunks: list[msgspec.Struct] = []
        if prompt is not None:
            opening = ChatChunkChoice(index=index, delta=ChatDelta(role="assistant", content=""))
            chunks.append(self._chunk(envelope, [opening], envelope.usage, envelope.ids(prompt)))
        if not envelope.says_nothing(piece):
            choice = ChatChunkChoice(
                index=index,
                delta=ChatDelta(content=piece.text),
                logprobs=envelope.chat_logprobs(piece) if piece.token_ids else None,
                finish_reason=piece.finish_reason,
                stop_reason=piece.stop_reason,
                token_ids=envelope.ids(piece.token_ids),
            )
            chunks.append(self._chunk(envelope, [choice], envelope.usage))
        return chunks

    def usage_chunk(self, envelope: Envelope, usage: Usage) -> msgspec.Struct:
        return self._chunk(envelope, [], usage)

    def whole(self, envelope: Envelope, choices: list[WholeChoice], usage: Usage) -> msgspec.Struct:
        made = [
            ChatChoice(
                index=index,
                message=AssistantMessage(content=choice.text),
                logprobs=envelope.chat_logprobs(choice),
                finish_reason=choice.finish_reason,
                stop_reason=choice.stop_reason,
                token_ids=envelope.ids(choice.token_ids),
            )
            for index, choice in enumerate(choices)
        ]
        return ChatCompletion(
            id=envelope.id,
            created=envelope.created,
            model=envelope.model,
            choices=made,
            usage=usage,
            prompt_token_ids=envelope.ids(choices[0].prompt),
        )

    def _chunk(
        self,
        envelope: Envelope,
        choices: list[ChatChunkChoice],
        usage: Usage | UnsetType | None,
        prompt: list[int] | UnsetType = UNSET,
    ) -> ChatCompletionChunk:
        return ChatCompletionChunk(
            id=envelope.id,
            created=envelope.created,
            model=envelope.model,
            choices=choices,
            usage=usage,
            prompt_token_ids=prompt,
        )
