"""Models in a directory: our engine and transformers over the same files."""

from collections.abc import Mapping
from pathlib import Path

import torch
import transformers

from livescale.services.host.checkpoint import open_checkpoint
from livescale.services.worker.engine.engine import TorchEngine
from tests.worker.engine.models import KERNELS, Checkpointed
from tests.worker.serving import Served, serve, submit


def engine_of(directory: Path) -> TorchEngine:
    """The engine in the form in which models are served on CPUs: bfloat16, in panels, by this machine's kernels."""
    checkpoint = open_checkpoint(directory, "bfloat16", 1, "panels")
    blocks = tuple(bytearray(one.size_bytes) for one in checkpoint.layouts)
    checksums = [checkpoint.read_block(index, memoryview(block)) for index, block in enumerate(blocks)]
    return Checkpointed(checkpoint.manifest(checksums), blocks).engine(kernels=KERNELS)


def median_errors(directory: Path, prompts: Mapping[str, list[int]], max_tokens: int) -> tuple[float, float]:
    """How far off transformers' logits in float32 our engine's are, and transformers' own in bfloat16: the root mean
    square of the median row.

    Other rows say little of models with experts, where a rounding may choose another one.
    """
    requests = [(0, submit(key, prompt, max_tokens=max_tokens)) for key, prompt in prompts.items()]
    served = serve(engine_of(directory), requests)
    right, theirs = (_logits(directory, dtype, prompts, served) for dtype in (torch.float32, torch.bfloat16))
    ours = torch.cat([served.rows(key).float() for key in prompts])
    own, other = (float((one - right).square().mean(dim=1).sqrt().median()) for one in (ours, theirs))
    return own, other


def _logits(directory: Path, dtype: torch.dtype, prompts: Mapping[str, list[int]], served: Served) -> torch.Tensor:
    """What transformers would choose each of the served tokens from, `[token, vocab]` in float32."""
    model = transformers.AutoModelForCausalLM.from_pretrained(directory, dtype=dtype)
    with torch.inference_mode():
        asked = [(len(prompt), prompt + served.tokens[key][:-1]) for key, prompt in prompts.items()]
        return torch.cat([model(torch.tensor([ids])).logits[0, length - 1 :].float() for length, ids in asked])
