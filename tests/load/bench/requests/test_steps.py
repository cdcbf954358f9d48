import pytest
import torch

from livescale.load.bench.requests.steps import CountedKernels
from livescale.services.worker.engine.kernels.variants import choose_kernels
from livescale.services.worker.engine.sampling import choose_tokens
from livescale.services.worker.scheduling.batch import TokenSampling
from livescale.shared.messages.requests import Sampling


def test_rows_whose_log_probabilities_are_told_are_counted_and_no_others() -> None:
    kernels = choose_kernels("auto").kernels
    if kernels is None:
        pytest.skip("no kernels were compiled")
    counted, logits = CountedKernels(kernels), torch.randn(3, 500)
    plain, asks = (TokenSampling(Sampling(logprobs=logprobs), 0) for logprobs in (None, 5))
    choose_tokens(logits.clone(), [plain] * 3, kernels=counted)
    assert counted.rows == 0
    chosen = choose_tokens(logits.clone(), [asks, plain, asks], kernels=counted)
    assert counted.rows == 2
    assert chosen.tokens == choose_tokens(logits.clone(), [asks, plain, asks], kernels=kernels).tokens
    assert counted.digest() == kernels.digest()
