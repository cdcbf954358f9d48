"""Small models that make vectors or give scores: the reference in transformers, and our engine over its checkpoint."""

from collections.abc import Iterable
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
import transformers
from transformers.utils.logging import disable_progress_bar

from livescale.services.worker.engine.engine import TorchEngine
from livescale.services.worker.scheduling.scheduler import Scheduler
from livescale.shared.messages.parameters import DType
from livescale.shared.messages.requests import Sampling, Submit
from tests.checkpoints import write_pooling
from tests.worker.engine.architectures import fields_of
from tests.worker.engine.models import Checkpointed, read_blocks
from tests.worker.requests import limits, submit

Numbers = npt.NDArray[np.float64]
LABELS = 3
CLASSES = {
    "embeds": "AutoModel",
    "scores": "AutoModelForSequenceClassification",
    "images": "AutoModelForImageClassification",
}
# Unlike in every channel.
PREPROCESSING: dict[str, Any] = {
    "resample": 3,
    "rescale_factor": 0.005,
    "image_mean": [0.5, 0.4, 0.3],
    "image_std": [0.3, 0.2, 0.25],
}


@cache
def pooling_reference(model_type: str, use: str, dtype: DType = "float32") -> Any:
    """The model in transformers, all of whose parameters are random."""
    torch.manual_seed(3)
    config = transformers.AutoConfig.for_model(model_type, **fields_of(model_type), num_labels=LABELS)
    model = getattr(transformers, CLASSES[use]).from_config(config, dtype=torch.float32)
    for name, parameter in model.named_parameters():
        noise = torch.randn(parameter.shape)
        if name.endswith("bias"):
            parameter.data = 0.3 * noise
        elif parameter.dim() == 1:
            parameter.data = 1 + 0.05 * noise
        else:
            is_looked_up = "embed" in name and "projection" not in name
            parameter.data = noise * (0.6 if is_looked_up else 1.6 / parameter[0].numel() ** 0.5)
        parameter.data = parameter.data.bfloat16().float()
    return model.to(torch.bfloat16 if dtype == "bfloat16" else torch.float32).eval()


@cache
def preprocessor(model_type: str) -> Any:
    """What makes numbers of images, in transformers."""
    size = fields_of(model_type)["image_size"]
    return transformers.ViTImageProcessorPil(size={"height": size, "width": size}, **PREPROCESSING)


@cache
def pooling_checkpoint(
    model_type: str, use: str, dtype: DType = "float32", shards: int = 1, pooling: str = "lasttoken"
) -> Checkpointed:
    """The same model as a host reads it from a Hugging Face directory."""
    with TemporaryDirectory() as name:
        disable_progress_bar()
        directory = Path(name)
        pooling_reference(model_type, use).save_pretrained(directory)
        if use == "embeds":
            write_pooling(directory, pooling)
        if use == "images":
            preprocessor(model_type).save_pretrained(directory)
        return read_blocks(directory, dtype, shards)


def asking(key: str, prompt: Iterable[int]) -> Submit:
    """A request for the vector of a prompt."""
    return submit(key, prompt, max_tokens=1, sampling=Sampling(pools=True))


def pool(engine: TorchEngine, arrivals: Iterable[tuple[int, Submit]], **fields: Any) -> tuple[dict[str, bytes], int]:
    """What is made of requests that arrive before the given steps, and how many of their tokens were not computed."""
    scheduler = Scheduler(limits(kv_blocks=engine.store.blocks, **{"pools": True, **fields}))
    scheduler.keep_prefixes()
    pending, made, step, cached = sorted(arrivals, key=lambda one: one[0]), dict[str, bytes](), 0, 0
    while pending or not scheduler.is_empty:
        while pending and pending[0][0] <= step:
            scheduler.add(pending.pop(0)[1])
        batch, step = scheduler.next_batch(), step + 1
        if batch is None:
            continue
        for output in scheduler.complete(batch, engine.step(batch), 0.0):
            [told] = output.row.logprobs
            made[output.row.request_id], cached = told.pooled, cached + output.row.cached_tokens
    return made, cached


def numbers(made: bytes) -> Numbers:
    """The numbers of a vector."""
    return np.frombuffer(made, "<f4").astype(np.float64)


def cosine(one: Numbers, other: Numbers) -> float:
    return float(one @ other / np.sqrt((one @ one) * (other @ other)))
