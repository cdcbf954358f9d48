"""The vocabulary of a model on its way to a worker, which needs it to apply grammars."""

from typing import Annotated

from msgspec import Meta

from livescale.shared.messages.message import Message, Name, TokenId

PART_BYTES = 512 << 10
MOST_VOCABULARY_BYTES = 64 << 20  # compressed
Digest = Annotated[str, Meta(min_length=32, max_length=32)]


class AskVocabulary(Message, frozen=True, kw_only=True):
    """Worker -> any gateway: the vocabulary of this version of a model, from byte `offset` on."""

    model: Name
    version: Name
    offset: Annotated[int, Meta(ge=0, lt=MOST_VOCABULARY_BYTES)] = 0


class VocabularyPart(Message, frozen=True, kw_only=True):
    """A part of a model's tokenizer.json, compressed by zlib; `digest` is that of all `total_bytes`. `ends` are the
    end-of-sequence tokens."""

    data: Annotated[bytes, Meta(max_length=PART_BYTES)]
    total_bytes: Annotated[int, Meta(ge=1, le=MOST_VOCABULARY_BYTES)]
    digest: Digest
    ends: list[TokenId] = []
