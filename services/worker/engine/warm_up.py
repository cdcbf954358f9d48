"""Torch's own part of a step, once: the first time it takes ten times as long, and no request should have to wait."""

import torch
from torch.nn.functional import embedding

from livescale.services.worker.batch import Draw
from livescale.services.worker.engine.sampling import choose_tokens
from livescale.shared.messages.requests import Sampling


@torch.inference_mode()
def warm_up() -> None:
    """On a CPU. To be called on the torch thread, before there is a model."""
    hidden = embedding(torch.tensor([0, 1, 2]), torch.zeros(4, 32, dtype=torch.bfloat16))
    choose_tokens(hidden[torch.tensor([1])], [Draw(Sampling(temperature=0.0), 0)])
