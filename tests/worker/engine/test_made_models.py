"""Models of `livescale make-model` are read as transformers reads them, and in the layout in which they are served."""

from pathlib import Path

import pytest
import torch
import transformers

from livescale.services.host.checkpoint import open_checkpoint
from livescale.shared.messages.parameters import Layout
from livescale.shared.model.architectures import model_types
from tests.checkpoints import tiny_checkpoint
from tests.worker.engine.architectures import generates
from tests.worker.engine.models import KERNELS, Checkpointed, needs_kernels
from tests.worker.serving import Served, random_prompt, serve, submit

PROMPTS = {str(length): random_prompt(length, length) for length in (5, 60, 129, 250)}
TOKENS = 8


def read(directory: Path, layout: Layout) -> Checkpointed:
    checkpoint = open_checkpoint(directory, "bfloat16", 1, layout)
    blocks = tuple(bytearray(one.size_bytes) for one in checkpoint.layouts)
    checksums = [checkpoint.read_block(index, memoryview(block)) for index, block in enumerate(blocks)]
    return Checkpointed(checkpoint.manifest(checksums), blocks)


def logits_of(directory: Path, dtype: torch.dtype, served: Served) -> torch.Tensor:
    """What transformers chooses each token from that was served, `[token, vocab]`."""
    model = transformers.AutoModelForCausalLM.from_pretrained(directory, dtype=dtype)
    with torch.inference_mode():
        asked = [(len(prompt), prompt + served.tokens[key][:-1]) for key, prompt in PROMPTS.items()]
        return torch.cat([model(torch.tensor([ids])).logits[0, length - 1 :].float() for length, ids in asked])


@needs_kernels
@pytest.mark.parametrize("family", [one for one in model_types() if generates(one)])
def test_their_logits_are_those_of_transformers(family: str) -> None:
    """The median row counts, as in models with experts a rounding may choose another one for a row."""
    directory = tiny_checkpoint(family)
    engine = read(directory, "panels").engine(kernels=KERNELS)
    served = serve(engine, [(0, submit(key, prompt, max_tokens=TOKENS)) for key, prompt in PROMPTS.items()])
    right, theirs = (logits_of(directory, dtype, served) for dtype in (torch.float32, torch.bfloat16))
    ours = torch.cat([served.rows(key).float() for key in PROMPTS])
    own, other = ((one - right).square().mean(dim=1).sqrt().median() for one in (ours, theirs))
    assert own <= 1.5 * other
