from pathlib import Path

import pytest
from huggingface_hub import constants

from livescale.shared.model.checkpoint import CheckpointError, resolve_model_path


def test_a_directory_is_taken_as_it_is(tmp_path: Path) -> None:
    assert resolve_model_path(str(tmp_path)) == tmp_path


@pytest.mark.parametrize("name", ["/no/such/place", "no/such/place", "", "nowhere", "../no/such"])
def test_what_is_neither_directory_nor_hub_id_is_refused(name: str) -> None:
    with pytest.raises(CheckpointError, match="no such directory"):
        resolve_model_path(name)


def test_a_file_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "model.safetensors"
    file.touch()
    with pytest.raises(CheckpointError, match="no such directory"):
        resolve_model_path(str(file))


def test_a_hub_id_is_refused_clearly_where_the_hub_is_switched_off(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
    with pytest.raises(CheckpointError, match=r"org/name: .*hub .*HF_HUB_OFFLINE"):
        resolve_model_path("org/name")
