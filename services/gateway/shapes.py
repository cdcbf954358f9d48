"""How pieces of text look to clients: OpenAI's objects of both endpoints, streamed and whole. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal, Protocol

import msgspec
from msgspec import UNSET, UnsetType

from livescale.services.gateway.output import StopReason, TextPiece


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
    """The text of one prompt, or a piece of it in a stream. `token_ids` with `return_token_ids` only."""

    index: int
    text: str
    logprobs: None = None
    finish_reason: StopReason | None = None
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
    """The only choice of a chat completion that is not streamed."""

    index: int
    message: AssistantMessage
    logprobs: None = None
    finish_reason: StopReason
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
    """A piece of the only choice of a chat's answer."""

    index: int
    delta: ChatDelta
    logprobs: None = None
    finish_reason: StopReason | None = None
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
    one."""

    id: str
    created: int
    model: str
    token_ids: bool
    usage_follows: bool

    @property
    def no_usage(self) -> UnsetType | None:
        """The `usage` of a chunk that has none: null where usage follows later, otherwise absent."""
        return None if self.usage_follows else UNSET

    def ids(self, token_ids: Sequence[int]) -> list[int] | UnsetType:
        """The token ids where the client asked for them, otherwise nothing."""
        return list(token_ids) if self.token_ids else UNSET

    def says_nothing(self, piece: TextPiece) -> bool:
        """Whether the piece needs no event: its text is held back."""
        return not piece.text and piece.finish_reason is None and not self.token_ids


@dataclass
class WholeChoice:
    """One choice of a whole answer, while its pieces come together."""

    prompt: list[int]
    texts: list[str] = field(default_factory=list)
    token_ids: list[int] = field(default_factory=list)
    finish_reason: StopReason = "length"

    def add(self, piece: TextPiece) -> None:
        self.texts.append(piece.text)
        self.token_ids.extend(piece.token_ids)
        self.finish_reason = piece.finish_reason or self.finish_reason

    @property
    def text(self) -> str:
        return "".join(self.texts)


class ResponseShape(Protocol):
    """Makes the objects of one endpoint. `prompt` is given with a choice's first piece only."""

    prefix: str

    def chunks(
        self, envelope: Envelope, index: int, piece: TextPiece, prompt: list[int] | None
    ) -> list[msgspec.Struct]: ...

    def usage_chunk(self, envelope: Envelope, usage: Usage) -> msgspec.Struct: ...

    def whole(self, envelope: Envelope, choices: list[WholeChoice], usage: Usage) -> msgspec.Struct: ...


class CompletionShape:
    """Makes the objects of /v1/completions, streamed and whole."""

    prefix = "cmpl"

    def chunks(
        self, envelope: Envelope, index: int, piece: TextPiece, prompt: list[int] | None
    ) -> list[msgspec.Struct]:
        if envelope.says_nothing(piece):
            return []
        choice = CompletionChoice(
            index=index,
            text=piece.text,
            finish_reason=piece.finish_reason,
            prompt_token_ids=UNSET if prompt is None else envelope.ids(prompt),
            token_ids=envelope.ids(piece.token_ids),
        )
        return [self._object(envelope, [choice], envelope.no_usage)]

    def usage_chunk(self, envelope: Envelope, usage: Usage) -> msgspec.Struct:
        return self._object(envelope, [], usage)

    def whole(self, envelope: Envelope, choices: list[WholeChoice], usage: Usage) -> msgspec.Struct:
        made = [
            CompletionChoice(
                index=index,
                text=choice.text,
                finish_reason=choice.finish_reason,
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
            chunks.append(self._chunk(envelope, [opening], envelope.no_usage, envelope.ids(prompt)))
        if not envelope.says_nothing(piece):
            choice = ChatChunkChoice(
                index=index,
                delta=ChatDelta(content=piece.text),
                finish_reason=piece.finish_reason,
                token_ids=envelope.ids(piece.token_ids),
            )
            chunks.append(self._chunk(envelope, [choice], envelope.no_usage))
        return chunks

    def usage_chunk(self, envelope: Envelope, usage: Usage) -> msgspec.Struct:
        return self._chunk(envelope, [], usage)

    def whole(self, envelope: Envelope, choices: list[WholeChoice], usage: Usage) -> msgspec.Struct:
        made = [
            ChatChoice(
                index=index,
                message=AssistantMessage(content=choice.text),
                finish_reason=choice.finish_reason,
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
