from collections.abc import Callable

import pytest
from tokenizers import Tokenizer

from livescale.services.gateway.checkpoint_text import (
    GENERATES,
    ModelUse,
    check_classifies,
    check_embeds,
    check_generates,
    check_pools,
    check_scores,
    text_of,
)
from livescale.services.gateway.errors import ApiError
from tests.checkpoints import tiny_checkpoint


class CountedTokenizer:
    """A checkpoint's tokenizer, and how often it decoded."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self.decodes = 0

    def decode(self, token_ids: tuple[int, ...], *, skip_special_tokens: bool) -> str:
        self.decodes += 1
        text: str = self._tokenizer.decode(token_ids, skip_special_tokens=skip_special_tokens)
        return text


def test_tokens_are_decoded_as_the_tokenizer_does_and_single_ones_only_once() -> None:
    tokenizer = Tokenizer.from_file(str(tiny_checkpoint("qwen2") / "tokenizer.json"))
    counted = CountedTokenizer(tokenizer)
    decode = text_of(counted)  # type: ignore[arg-type]
    special = next(id for id, token in tokenizer.get_added_tokens_decoder().items() if token.special)
    asked = [(), (66,), (special,), (66, special, 67)]
    for _ in range(2):
        for token_ids in asked:
            for skip in (True, False):
                assert decode(token_ids, skip) == tokenizer.decode(token_ids, skip_special_tokens=skip)
    assert counted.decodes == 2 * len(asked) + 2 * 2  # the second time only those of none and of several tokens


JUDGES = ModelUse(verdict=(1, 2))
EMBEDS = ModelUse(pooling="mean")
SCORES = ModelUse(pooling="cls", labels=1)
CLASSIFIES = ModelUse(pooling="cls", labels=3)
MODELS = {"writer": GENERATES, "judge": JUDGES, "embedder": EMBEDS, "scorer": SCORES, "classifier": CLASSIFIES}


@pytest.mark.parametrize(
    ("check", "served"),
    [
        (check_generates, {"writer", "judge"}),
        (check_pools, {"embedder", "scorer", "classifier"}),
        (check_embeds, {"embedder"}),
        (check_classifies, {"scorer", "classifier"}),
        (check_scores, {"judge", "embedder", "scorer"}),
    ],
)
def test_an_endpoint_serves_the_models_that_can_and_names_another_to_the_others(
    check: Callable[[str, ModelUse], None], served: set[str]
) -> None:
    for name, use in MODELS.items():
        if name in served:
            check(name, use)
            continue
        with pytest.raises(ApiError, match=f"'{name}'.*; use /") as refused:
            check(name, use)
        assert (refused.value.status, refused.value.detail.code) == (400, "wrong_use_of_model")


def test_every_model_generates_makes_vectors_or_gives_scores() -> None:
    kinds = {name: (use.generates, use.makes_vectors, bool(use.labels)) for name, use in MODELS.items()}
    assert all(sum(kind) == 1 for kind in kinds.values())


def test_an_embedder_scores_pairs_by_two_vectors() -> None:
    assert {name for name, use in MODELS.items() if use.scores_pairs} == {"judge", "scorer"}
