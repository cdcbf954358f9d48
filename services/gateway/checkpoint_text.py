"""What a gateway knows of a model's checkpoint: the tokens of texts, the texts of tokens, and what it is for.

A stream decodes each token twice: behind those before it, and alone. The second time costs as much as the first.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from typing import Any

from tokenizers import Tokenizer

from livescale.services.gateway.chat_template import ChatTemplate
from livescale.services.gateway.errors import wrong_use
from livescale.services.gateway.output import Decode
from livescale.shared.messages.images import Images
from livescale.shared.messages.parameters import Pooling

GENERATION = "/v1/completions or /v1/chat/completions"
SCORES = "/score, /rerank, /classify or /pooling"


@dataclass(frozen=True)
class ModelUse:
    """What becomes of a prompt: its next tokens, or by a `pooling` a vector, or with `labels` as many scores. The
    fields are those of ModelConfig. `label_names` are what its labels are called; where they are `independent`, a text
    may have several. By the two tokens of `verdict` a model that generates says that a text does not fit another one,
    or does. A model of `images` takes no texts."""

    pooling: Pooling = "none"
    normalized: bool = False
    bare_scores: bool = False
    labels: int = 0
    label_names: tuple[str, ...] = ()
    independent: bool = False
    verdict: tuple[int, ...] = ()
    images: Images | None = None

    @property
    def generates(self) -> bool:
        return self.pooling == "none"

    @property
    def makes_vectors(self) -> bool:
        return self.pooling != "none" and not self.labels

    @property
    def scores_pairs(self) -> bool:
        """Whether it gives one score of two texts, and not two vectors to be compared."""
        return self.labels == 1 or bool(self.verdict)


GENERATES = ModelUse()


def check_generates(model: str, use: ModelUse) -> None:
    """Raises ApiError 400 where the model generates nothing."""
    if use.makes_vectors:
        raise wrong_use(model, "makes vectors and generates no text", "/v1/embeddings, /score or /rerank")
    if not use.generates:
        raise wrong_use(model, "gives scores and generates no text", SCORES)


def check_reads(model: str, use: ModelUse) -> None:
    """Raises ApiError 400 where the model takes no texts."""
    if use.images is not None:
        raise wrong_use(model, "takes images and no texts", "/classify")


def check_pools(model: str, use: ModelUse) -> None:
    """Raises ApiError 400 where the model neither makes vectors nor gives scores of one text."""
    if use.generates:
        raise wrong_use(model, "generates text and makes no vectors", GENERATION)


def check_embeds(model: str, use: ModelUse) -> None:
    """Raises ApiError 400 where the model makes no vectors."""
    check_pools(model, use)
    if use.labels:
        raise wrong_use(model, "gives scores and makes no vectors", SCORES)


def check_classifies(model: str, use: ModelUse) -> None:
    """Raises ApiError 400 where the model has no labels."""
    check_pools(model, use)
    if use.makes_vectors:
        raise wrong_use(model, "makes vectors and has no labels", "/v1/embeddings, /score or /rerank")


def check_scores(model: str, use: ModelUse) -> None:
    """Raises ApiError 400 where the model cannot say how well two texts fit."""
    if use.labels > 1:
        raise wrong_use(model, f"gives {use.labels} scores of a text and not one", "/classify or /pooling")
    if not use.scores_pairs and not use.makes_vectors:
        raise wrong_use(
            model,
            "generates text, and its config.json names no tokens in classifier_from_token by which it judges",
            GENERATION,
        )


MOST_TOKENS = 16_384  # the frequent ones of any vocabulary

TextOf = Callable[[Sequence[int], bool], str]  # of tokens; the flag leaves special ones out


def text_of(tokenizer: Tokenizer) -> TextOf:
    """Make a function that turns token ids into text, and remembers the texts of single ones."""

    @lru_cache(maxsize=MOST_TOKENS)
    def one(token_id: int, skip_special: bool) -> str:
        return several((token_id,), skip_special)

    def several(token_ids: Sequence[int], skip_special: bool) -> str:
        text: str = tokenizer.decode(token_ids, skip_special_tokens=skip_special)
        return text

    def decode(token_ids: Sequence[int], skip_special: bool) -> str:
        return one(token_ids[0], skip_special) if len(token_ids) == 1 else several(token_ids, skip_special)

    return decode


@dataclass(frozen=True)
class GenerationDefaults:
    """The sampling that the checkpoint's authors recommend, used where the client says nothing."""

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    repetition_penalty: float = 1.0


@dataclass(frozen=True)
class CheckpointText:
    """Everything that the gateway needs of a checkpoint; never its parameters. `template` is None where the checkpoint
    has no chat template; `special_tokens` are for one that a client brings. The `tokenizer` of a model of images has no
    token. `about` is what tokenizer_config.json says."""

    tokenizer: Tokenizer
    template: ChatTemplate | None
    eos_token_ids: tuple[int, ...]
    vocab_size: int
    defaults: GenerationDefaults
    special_tokens: Mapping[str, str] = field(default_factory=dict)
    about: Mapping[str, Any] = field(default_factory=dict)
    use: ModelUse = GENERATES

    def encode(self, text: str, *, add_special_tokens: bool) -> list[int]:
        """The token ids of a text, with the tokenizer's special tokens around it or without."""
        ids: list[int] = self.tokenizer.encode(text, add_special_tokens=add_special_tokens).ids
        return ids

    def encode_with_offsets(self, text: str, *, add_special_tokens: bool) -> tuple[list[int], list[list[int]]]:
        """The token ids of a text, and where each begins and ends in it."""
        encoded = self.tokenizer.encode(text, add_special_tokens=add_special_tokens)
        return encoded.ids, [list(offsets) for offsets in encoded.offsets]

    def encode_pair(self, one: str, other: str, *, add_special_tokens: bool) -> tuple[list[int], int]:
        """The token ids of two texts that are to be compared, as the tokenizer joins them, and where the second begins;
        0 where it does not tell them apart."""
        encoding = self.tokenizer.encode(one, other, add_special_tokens=add_special_tokens)
        ids: list[int] = encoding.ids
        return ids, encoding.type_ids.index(1) if 1 in encoding.type_ids else 0

    def decode(self, token_ids: Sequence[int]) -> str:
        """The text of token ids, without special tokens."""
        return self._text_of(token_ids, True)

    def decode_all(self, token_ids: Sequence[int]) -> str:
        """The text of token ids with special tokens written out: the inverse of `encode`."""
        return self._text_of(token_ids, False)

    def decoder(self, kept: Collection[str]) -> Decode:
        """What decodes token ids without special tokens other than these."""
        if not any(token in kept for token in self._special.values()):
            return self.decode
        hidden = frozenset(id for id, token in self._special.items() if token not in kept)

        def decode(token_ids: Sequence[int]) -> str:
            return self.decode_all([id for id in token_ids if id not in hidden])

        return decode

    def token_text(self, token_id: int) -> str:
        """The text of one token within a text: it keeps a space that begins it."""
        anchor, text = self._anchor
        return self.decode_all([*anchor, token_id])[len(text) :]

    @cached_property
    def _text_of(self) -> TextOf:
        return text_of(self.tokenizer)

    @cached_property
    def added_tokens(self) -> dict[str, int]:
        """The ids of tokens that the tokenizer takes out of a text before all else, special ones among them."""
        return {token.content: id for id, token in self.tokenizer.get_added_tokens_decoder().items()}

    @cached_property
    def _special(self) -> dict[int, str]:
        """The special tokens by their ids."""
        added = self.tokenizer.get_added_tokens_decoder()
        return {id: token.content for id, token in added.items() if token.special}

    @cached_property
    def _anchor(self) -> tuple[list[int], str]:
        """A token that others follow, and its text: decoders treat the first token of a text specially."""
        ids = self.encode("a", add_special_tokens=False)[-1:]
        return ids, self.decode_all(ids)
