"""Models in a directory: our engine and transformers over the same files."""

from collections.abc import Mapping
from pathlib import Path

import torch
import transformers

from tests.worker.engine.models import KERNELS, logits_of, read_blocks
from tests.worker.requests import submit
from tests.worker.serving import Served, median_row, serve


def median_errors(directory: Path, prompts: Mapping[str, list[int]], max_tokens: int) -> tuple[float, float]:
    """How far off transformers' logits in float32 our engine's are, in the form in which models are served on CPUs, and
    transformers' own in bfloat16: the root mean square of the median row.

    Other rows say little of models with experts, where a rounding may choose another one.
    """
    engine = read_blocks(directory, "bfloat16", layout="panels").engine(kernels=KERNELS)
    served = serve(engine, [(0, submit(key, prompt, max_tokens=max_tokens)) for key, prompt in prompts.items()])
    right, theirs = (_logits(directory, dtype, prompts, served) for dtype in (torch.float32, torch.bfloat16))
    ours = torch.cat([served.rows(key).float() for key in prompts])
    return median_row([ours - right]), median_row([theirs - right])


def _logits(directory: Path, dtype: torch.dtype, prompts: Mapping[str, list[int]], served: Served) -> torch.Tensor:
    """What transformers would choose each of the served tokens from, `[token, vocab]` in float32."""
    model = transformers.AutoModelForCausalLM.from_pretrained(directory, dtype=dtype)
    return torch.cat([logits_of(model, prompt, served.tokens[key]) for key, prompt in prompts.items()])
