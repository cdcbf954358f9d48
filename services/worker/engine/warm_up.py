"""What torch does slowly the first time, done before there is a request."""

import torch
from torch.nn.functional import embedding

from livescale.services.worker.engine.sampling import choose_tokens
from livescale.services.worker.scheduling.batch import TokenSampling
from livescale.shared.messages.requests import Sampling


@torch.inference_mode()
def warm_up() -> None:
    """Run torch's part of a step once on a CPU, because the first time takes ten times as long.

    Call it on the torch thread, before there is a model: then no request has to wait for it.
    """
    hidden = embedding(torch.tensor([0, 1, 2]), torch.zeros(4, 32, dtype=torch.bfloat16))
    choose_tokens(hidden[torch.tensor([1])], [TokenSampling(Sampling(temperature=0.0), 0)])
