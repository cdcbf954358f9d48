"""What a checkpoint is for is read from its class and from the files of sentence-transformers."""

import json
from pathlib import Path
from typing import Any

import pytest

from livescale.shared.messages.parameters import ModelConfig
from livescale.shared.model.checkpoint import CheckpointError, load_model_config
from livescale.shared.model.declaration.tensors import HEAD, SCORE, model_parameters
from tests.checkpoints import write_pooling
from tests.worker.engine.architectures import fields_of

QWEN: dict[str, Any] = {"model_type": "qwen3", **fields_of("qwen3"), "tie_word_embeddings": False}


def read(directory: Path, **fields: Any) -> ModelConfig:
    (directory / "config.json").write_text(json.dumps(QWEN | fields))
    return load_model_config(directory)


def last_block(config: ModelConfig) -> list[str]:
    return [one.name for one in model_parameters(config)["head"]]


def test_a_causal_model_generates(tmp_path: Path) -> None:
    config = read(tmp_path, architectures=["Qwen3ForCausalLM"])
    assert (config.pooling, config.labels) == ("none", 0)
    assert last_block(config) == ["model.norm.weight", HEAD]


@pytest.mark.parametrize(
    ("named", "pooling", "labels"),
    [("GPT2LMHeadModel", "none", 0), ("GPT2Model", "last", 0), ("GPT2ForSequenceClassification", "last", 2)],
)
def test_the_classes_of_gpt2_are_told_apart(named: str, pooling: str, labels: int, tmp_path: Path) -> None:
    gpt2 = {"model_type": "gpt2", "vocab_size": 9, "n_embd": 8, "n_head": 2, "n_layer": 1, "n_positions": 5}
    (tmp_path / "config.json").write_text(json.dumps(gpt2 | {"architectures": [named]}))
    config = load_model_config(tmp_path)
    assert (config.pooling, config.labels) == (pooling, labels)


def test_sentence_transformers_make_it_pool(tmp_path: Path) -> None:
    write_pooling(tmp_path, normalized=False)
    config = read(tmp_path, architectures=["Qwen3ForCausalLM"])
    assert (config.pooling, config.normalized) == ("last", False)
    assert last_block(config) == ["model.norm.weight"]


def test_a_model_without_a_head_makes_vectors_of_length_1(tmp_path: Path) -> None:
    config = read(tmp_path, architectures=["Qwen3Model"])
    assert (config.pooling, config.normalized) == ("last", True)


def test_a_classifier_has_a_score_of_each_label(tmp_path: Path) -> None:
    classes = {"architectures": ["Qwen3ForSequenceClassification"]}
    assert read(tmp_path, **classes).labels == 2
    config = read(tmp_path, **classes, id2label={"0": "a"}, sentence_transformers={"activation_fn": "torch.Identity"})
    assert (config.pooling, config.labels, config.bare_scores) == ("last", 1, True)
    assert last_block(config) == ["model.norm.weight", SCORE]


@pytest.mark.parametrize(
    ("problem_type", "bare"),
    [("regression", True), ("single_label_classification", False), ("multi_label_classification", False)],
)
def test_what_a_classifier_was_trained_on_says_whether_its_scores_are_likelihoods(
    problem_type: str, bare: bool, tmp_path: Path
) -> None:
    classes = {"architectures": ["Qwen3ForSequenceClassification"], "problem_type": problem_type}
    other = "torch.Sigmoid" if bare else "torch.Identity"
    assert read(tmp_path, **classes, sentence_transformers={"activation_fn": other}).bare_scores is bare


def test_a_model_that_judges_by_its_tokens_generates_as_well(tmp_path: Path) -> None:
    config = read(tmp_path, classifier_from_token=["no", "yes"], is_original_qwen3_reranker=True)
    assert (config.pooling, config.classifier_from_token) == ("none", ["no", "yes"])


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"architectures": ["Qwen3ForTokenClassification"]}, "has none of Qwen3ForCausalLM, Qwen3Model"),
        ({"classifier_from_token": ["yes"]}, "must have two"),
        ({"classifier_from_token": "yes"}, "must be a list of strings"),
    ],
)
def test_other_uses_are_refused_by_name(tmp_path: Path, fields: dict[str, Any], said: str) -> None:
    with pytest.raises(CheckpointError, match=said):
        read(tmp_path, **fields)


def test_a_causal_model_pools_by_its_last_row_only(tmp_path: Path) -> None:
    write_pooling(tmp_path, "mean_tokens")
    with pytest.raises(CheckpointError, match="pooling by 'mean' is not served of this architecture"):
        read(tmp_path)
