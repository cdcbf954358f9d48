"""How log-probabilities look to clients: OpenAI's objects of both endpoints. Pure."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import msgspec

from livescale.services.gateway.output import WholeChoice
from livescale.shared.messages.requests import TokenLogprobs

LEAST = -9999.0  # in place of minus infinity, which JSON does not have


class NamedLogprob(msgspec.Struct, frozen=True, kw_only=True):
    """The log-probability of a token. `bytes` are those of its text in UTF-8."""

    token: str
    logprob: float
    bytes: list[int]


class ContentLogprob(NamedLogprob, frozen=True, kw_only=True):
    """A generated token, and the likeliest tokens in its place."""

    top_logprobs: list[NamedLogprob]


class ChatLogprobs(msgspec.Struct, frozen=True, kw_only=True):
    """One entry for each generated token, the last one that is not text included."""

    content: list[ContentLogprob]
    refusal: None = None


class CompletionLogprobs(msgspec.Struct, frozen=True, kw_only=True):
    """Lists with an entry for each token. `text_offset` adds up the tokens' texts; `top_logprobs` are by text, the
    token's own among them."""

    text_offset: list[int]
    token_logprobs: list[float | None]
    tokens: list[str]
    top_logprobs: list[dict[str, float] | None]


class PromptLogprob(msgspec.Struct, frozen=True, kw_only=True):
    """The log-probability of a token in a place of the prompt, and which of all tokens it is there, from 1 on."""

    logprob: float
    rank: int
    decoded_token: str


# By token id: those of the prompt's own token, and of the likeliest. Of the first token nothing is known.
PromptLogprobList = list[dict[int, PromptLogprob] | None]


@dataclass(frozen=True)
class TokenNames:
    """How tokens are called where their log-probabilities are told: by their text, or `as_ids`."""

    text: Callable[[int], str]
    as_ids: bool = False

    def __call__(self, token_id: int) -> str:
        return f"token_id:{token_id}" if self.as_ids else self.text(token_id)

    def of_chat(self, token_ids: Sequence[int], logprobs: Sequence[TokenLogprobs | None]) -> ChatLogprobs:
        """Return the entries of tokens in the form of chat completions."""
        content = []
        for token_id, told in zip(token_ids, logprobs, strict=True):
            if told is None:
                continue  # there is none without in a chat
            own = self._named(token_id, told.chosen)
            top = [self._named(id, logprob) for id, logprob in told.top]
            content.append(ContentLogprob(token=own.token, logprob=own.logprob, bytes=own.bytes, top_logprobs=top))
        return ChatLogprobs(content=content)

    def of_prompt(self, token_ids: Sequence[int], logprobs: Sequence[TokenLogprobs], top: int) -> PromptLogprobList:
        """The entries of a prompt's tokens, with `top` of the likeliest."""
        entries: PromptLogprobList = [None] * min(1, len(token_ids))
        for own, told in zip(token_ids[1:], logprobs, strict=True):
            ranked = [(own, told.chosen, told.rank)]
            ranked += [(id, logprob, rank) for rank, (id, logprob) in enumerate(told.top[:top], start=1) if id != own]
            entries.append(
                {
                    id: PromptLogprob(logprob=max(logprob, LEAST), rank=rank, decoded_token=self.text(id))
                    for id, logprob, rank in ranked
                }
            )
        return entries

    def of_completion(
        self, token_ids: Sequence[int], logprobs: Sequence[TokenLogprobs | None], offset: int = 0
    ) -> CompletionLogprobs:
        """The entries of a completion's tokens, the first of which begins at `offset`."""
        names = [self(id) for id in token_ids]
        lengths = [len(self.text(id)) for id in token_ids]
        return CompletionLogprobs(
            text_offset=list(_starts(lengths, offset)),
            token_logprobs=[None if told is None else max(told.chosen, LEAST) for told in logprobs],
            tokens=names,
            top_logprobs=[
                None if told is None else self._by_name(name, told) for name, told in zip(names, logprobs, strict=True)
            ],
        )

    def length(self, token_ids: Sequence[int]) -> int:
        """Count the characters of these tokens' texts, for the offsets of those that follow."""
        return sum(len(self.text(id)) for id in token_ids)

    def _named(self, token_id: int, logprob: float) -> NamedLogprob:
        own = list(self.text(token_id).encode())
        return NamedLogprob(token=self(token_id), logprob=max(logprob, LEAST), bytes=own)

    def _by_name(self, name: str, told: TokenLogprobs) -> dict[str, float]:
        by_name: dict[str, float] = {}
        for id, logprob in told.top:
            by_name.setdefault(self(id), max(logprob, LEAST))
        by_name.setdefault(name, max(told.chosen, LEAST))
        return by_name


def _starts(lengths: Sequence[int], offset: int) -> Iterator[int]:
    for length in lengths:
        yield offset
        offset += length


@dataclass(frozen=True)
class PromptNames:
    """How the log-probabilities of a prompt are told, with `top` of the likeliest."""

    names: TokenNames
    top: int

    def of(self, told: WholeChoice) -> PromptLogprobList:
        """Return vLLM's `prompt_logprobs` of a choice."""
        return self.names.of_prompt(told.prompt, told.prompt_logprobs, self.top)
