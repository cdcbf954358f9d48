"""Texts through the whole system are classified as transformers' pipeline does it."""

import json
import shutil
from pathlib import Path
from typing import Any, cast

import httpx
import pytest
import torch
import transformers

from tests.checkpoints import tiny_checkpoint
from tests.system.conftest import started

pytestmark = [pytest.mark.system, pytest.mark.slow]
TEXTS = ["A lease is a promise.", "rain", " ".join(["word"] * 60)]
LABELS = {0: "sad", 1: "plain", 2: "glad"}


def classifier(to: Path, problem_type: str) -> Path:
    """BERT with three labels, all of whose parameters are random."""
    torch.manual_seed(1)
    base, made = tiny_checkpoint("bert"), to / "classifier"
    labels = {"id2label": LABELS, "label2id": {name: index for index, name in LABELS.items()}}
    config = transformers.AutoConfig.from_pretrained(base, **labels, problem_type=problem_type)
    model = transformers.AutoModelForSequenceClassification.from_config(config, dtype=torch.float32)
    for parameter in model.parameters():
        parameter.data = torch.randn(parameter.shape) * (1.2 / parameter.shape[-1] ** 0.5 if parameter.dim() > 1 else 1)
    model.save_pretrained(made)
    for file in base.glob("tokenizer*"):
        shutil.copy(file, made)
    return made


@pytest.mark.parametrize("problem_type", ["single_label_classification", "multi_label_classification", "regression"])
def test_labels_and_likelihoods_are_those_of_transformers(problem_type: str, tmp_path: Path) -> None:
    checkpoint = classifier(tmp_path, problem_type)
    with started(tmp_path, checkpoint=checkpoint) as system:
        answer = httpx.post(f"{system.url}/classify", json={"model": "m", "input": TEXTS}, timeout=60).json()
    pipeline = transformers.pipeline("text-classification", model=str(checkpoint), dtype=torch.float32, top_k=None)
    assert len({json.dumps(one["probs"]) for one in answer["data"]}) == len(TEXTS)
    expected = cast("list[list[dict[str, Any]]]", pipeline(TEXTS))
    for told, right in zip(answer["data"], expected, strict=True):
        assert told["label"] == right[0]["label"]  # the best comes first
        likely = {one["label"]: one["score"] for one in right}
        assert told["probs"] == pytest.approx([likely[name] for name in LABELS.values()], abs=1e-4)
