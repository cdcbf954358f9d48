"""Models of `livescale make-model` are read as transformers reads them."""

import pytest

from livescale.shared.model.architectures import model_types
from tests.checkpoints import tiny_checkpoint
from tests.worker.engine.architectures import generates
from tests.worker.engine.models import needs_kernels
from tests.worker.engine.stored_models import median_errors
from tests.worker.requests import random_prompt

PROMPTS = {str(length): random_prompt(length, length) for length in (5, 60, 129, 250)}


@needs_kernels
@pytest.mark.parametrize("family", [one for one in model_types() if generates(one)])
def test_their_logits_are_those_of_transformers(family: str) -> None:
    ours, theirs = median_errors(tiny_checkpoint(family), PROMPTS, max_tokens=8)
    assert ours <= 1.5 * theirs
