"""What a model is for: every endpoint serves some models, and names another endpoint to the others."""

from collections.abc import Callable

import pytest

from livescale.services.gateway.errors import ApiError
from livescale.services.gateway.uses import (
    GENERATES,
    ModelUse,
    check_classifies,
    check_embeds,
    check_generates,
    check_pools,
    check_scores,
)

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
