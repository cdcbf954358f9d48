"""The files of sentence-transformers, as they were and are written."""

import json
from pathlib import Path
from typing import Any

import pytest

from livescale.shared.model.declaration.config_file import CheckpointError
from livescale.shared.model.sentence_files import SentenceModel, read_sentence_model


def write(directory: Path, modules: list[dict[str, str]], pooling: dict[str, Any]) -> Path:
    (directory / "modules.json").write_text(json.dumps(modules))
    (directory / "1_Pooling").mkdir()
    (directory / "1_Pooling" / "config.json").write_text(json.dumps(pooling))
    return directory


def module(type: str, path: str = "") -> dict[str, str]:
    return {"idx": "0", "name": "0", "path": path, "type": type}


OLD = [module("sentence_transformers.models.Transformer"), module("sentence_transformers.models.Pooling", "1_Pooling")]


def test_without_the_files_nothing_is_said(tmp_path: Path) -> None:
    assert read_sentence_model(tmp_path) is None


@pytest.mark.parametrize(
    ("pooling", "expected"),
    [
        ({"pooling_mode_cls_token": True, "pooling_mode_mean_tokens": False}, "cls"),
        ({"pooling_mode_mean_tokens": True, "pooling_mode_max_tokens": False}, "mean"),
        ({"pooling_mode_lasttoken": True}, "last"),
        ({"pooling_mode": "lasttoken", "embedding_dimension": 9}, "last"),
    ],
)
def test_old_and_new_files_are_read(tmp_path: Path, pooling: dict[str, Any], expected: Any) -> None:
    assert read_sentence_model(write(tmp_path, OLD, pooling)) == SentenceModel(expected, normalized=False)


def test_vectors_may_be_normalized(tmp_path: Path) -> None:
    modules = [*OLD, module("sentence_transformers.sentence_transformer.modules.normalize.Normalize", "2_Normalize")]
    assert read_sentence_model(write(tmp_path, modules, {"pooling_mode": "cls"})) == SentenceModel("cls", True)


@pytest.mark.parametrize(
    ("modules", "pooling", "said"),
    [
        ([*OLD, module("sentence_transformers.models.Dense", "2_Dense")], {"pooling_mode": "cls"}, "module 'Dense'"),
        (OLD, {"pooling_mode_max_tokens": True}, "pooling by pooling_mode_max_tokens is not served"),
        (OLD, {"pooling_mode_cls_token": True, "pooling_mode_mean_tokens": True}, "is not served"),
        (OLD, {}, "pooling by nothing"),
        ([OLD[0], module("x.Pooling", "../elsewhere")], {}, "is not the name of a directory beside it"),
    ],
)
def test_what_is_not_served_is_refused_by_name(
    tmp_path: Path, modules: list[dict[str, str]], pooling: dict[str, Any], said: str
) -> None:
    with pytest.raises(CheckpointError, match=said):
        read_sentence_model(write(tmp_path, modules, pooling))
