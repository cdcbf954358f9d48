"""How pieces of text look to clients: OpenAI's objects of both endpoints, streamed and whole. Pure."""

from collections import Counter
from typing import Literal, Protocol

import msgspec
from msgspec import UNSET, UnsetType
from msgspec.structs import replace

from livescale.services.gateway.assistant_message import AssistantMessage, ChatDelta, delta_of, message_of
from livescale.services.gateway.envelope import Envelope, Usage
from livescale.services.gateway.logprobs import ChatLogprobs, CompletionLogprobs, PromptLogprobList
from livescale.services.gateway.output import StopReason, TextPiece, WholeChoice


class Answer(msgspec.Struct, frozen=True, kw_only=True):
    """The fields that every object of an answer has. `system_fingerprint` is the version of the model, and of its
    adapter, that began the answer; of beams it is null."""

    id: str
    created: int
    model: str
    system_fingerprint: str | None = None


class CompletionChoice(msgspec.Struct, frozen=True, kw_only=True):
    """One choice of a prompt, or a piece of it in a stream. `stop_reason` is the stop string or stop token of the
    client's that ended it. What nobody asked for is null in a whole answer, as in vLLM; pieces do not have it."""

    index: int
    text: str
    logprobs: CompletionLogprobs | None = None
    finish_reason: StopReason | None = None
    stop_reason: int | str | None = None
    prompt_logprobs: PromptLogprobList | UnsetType | None = UNSET
    prompt_token_ids: list[int] | UnsetType | None = UNSET
    token_ids: list[int] | UnsetType | None = UNSET


class Completion(Answer, frozen=True, kw_only=True):
    """The answer of /v1/completions, and every event of it when streamed."""

    object: Literal["text_completion"] = "text_completion"
    choices: list[CompletionChoice]
    usage: Usage | UnsetType | None = UNSET
    service_tier: UnsetType | None = UNSET


class ChatChoice(msgspec.Struct, frozen=True, kw_only=True):
    """One choice of a chat completion that is not streamed."""

    index: int
    message: AssistantMessage
    logprobs: ChatLogprobs | None = None
    finish_reason: StopReason
    stop_reason: int | str | None = None
    token_ids: list[int] | None = None


class ChatCompletion(Answer, frozen=True, kw_only=True):
    """The whole answer of /v1/chat/completions. What nobody asked for is null, as in vLLM."""

    object: Literal["chat.completion"] = "chat.completion"
    choices: list[ChatChoice]
    usage: Usage
    service_tier: None = None
    prompt_logprobs: PromptLogprobList | None = None
    prompt_token_ids: list[int] | None = None
    prompt_text: str | None = None


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
    prompt_text: str | UnsetType = UNSET


class ResponseShape(Protocol):
    """Makes the objects of one endpoint. `prompt` is given with a choice's first piece only, and
    `ending` makes what comes after all pieces where the client wants to know the usage."""

    prefix: str

    def chunks(
        self, envelope: Envelope, index: int, piece: TextPiece, prompt: list[int] | None
    ) -> list[msgspec.Struct]: ...

    def ending(self, envelope: Envelope, usage: Usage) -> list[msgspec.Struct]: ...

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
            prompt_token_ids=UNSET if prompt is None else envelope.piece_ids(prompt),
            token_ids=envelope.piece_ids(piece.token_ids),
        )
        if envelope.names is not None:
            self._offsets[index] += envelope.names.length([*piece.echoed, *piece.token_ids])
        return [self._object(envelope, [choice], envelope.usage)]

    def ending(self, envelope: Envelope, usage: Usage) -> list[msgspec.Struct]:
        return [self._object(envelope, [], usage)]

    def whole(self, envelope: Envelope, choices: list[WholeChoice], usage: Usage) -> msgspec.Struct:
        made = [
            CompletionChoice(
                index=index,
                text=choice.text,
                logprobs=envelope.completion_logprobs(choice),
                finish_reason=choice.finish_reason,
                stop_reason=choice.stop_reason,
                prompt_logprobs=envelope.prompt_logprobs(choice),
                prompt_token_ids=envelope.ids(choice.prompt),
                token_ids=envelope.ids(choice.token_ids),
            )
            for index, choice in enumerate(choices)
        ]
        return replace(self._object(envelope, made, usage), service_tier=None)

    def _object(
        self, envelope: Envelope, choices: list[CompletionChoice], usage: Usage | UnsetType | None
    ) -> Completion:
        return Completion(
            id=envelope.id,
            created=envelope.created,
            model=envelope.model,
            system_fingerprint=envelope.fingerprint,
            choices=choices,
            usage=usage,
        )


class ChatShape:
    """Makes the objects of /v1/chat/completions, streamed and whole."""

    prefix = "chatcmpl"

    def chunks(
        self, envelope: Envelope, index: int, piece: TextPiece, prompt: list[int] | None
    ) -> list[msgspec.Struct]:
        chunks: list[msgspec.Struct] = []
        if prompt is not None:
            opening = ChatChunkChoice(index=index, delta=ChatDelta(role="assistant", content=""))
            first = self._chunk(envelope, [opening], envelope.usage)
            said = UNSET if envelope.prompt_text is None else envelope.prompt_text
            chunks.append(replace(first, prompt_token_ids=envelope.piece_ids(prompt), prompt_text=said))
        if not envelope.says_nothing(piece):
            choice = ChatChunkChoice(
                index=index,
                delta=delta_of(piece),
                logprobs=envelope.chat_logprobs(piece) if piece.token_ids else None,
                finish_reason=piece.finish_reason,
                stop_reason=piece.stop_reason,
                token_ids=envelope.piece_ids(piece.token_ids),
            )
            chunks.append(self._chunk(envelope, [choice], envelope.usage))
        return chunks

    def ending(self, envelope: Envelope, usage: Usage) -> list[msgspec.Struct]:
        return [self._chunk(envelope, [], usage)]

    def whole(self, envelope: Envelope, choices: list[WholeChoice], usage: Usage) -> msgspec.Struct:
        made = [
            ChatChoice(
                index=index,
                message=message_of(choice),
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
            system_fingerprint=envelope.fingerprint,
            choices=made,
            usage=usage,
            prompt_logprobs=envelope.prompt_logprobs(choices[0]),
            prompt_token_ids=envelope.ids(choices[0].prompt),
            prompt_text=envelope.prompt_text,
        )

    def _chunk(
        self, envelope: Envelope, choices: list[ChatChunkChoice], usage: Usage | UnsetType | None
    ) -> ChatCompletionChunk:
        return ChatCompletionChunk(
            id=envelope.id,
            created=envelope.created,
            model=envelope.model,
            system_fingerprint=envelope.fingerprint,
            choices=choices,
            usage=usage,
        )
