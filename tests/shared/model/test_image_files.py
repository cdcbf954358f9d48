"""preprocessor_config.json: read as transformers writes it, and refused by name where it asks for what is not done."""

import json
from pathlib import Path
from typing import Any

import pytest
import transformers

from livescale.shared.messages.images import Images
from livescale.shared.model.declaration.config_file import CheckpointError
from livescale.shared.model.image_files import PREPROCESSOR, read_preprocessing

IMAGES = Images(size=224, patch=16)


def written(to: Path, **fields: Any) -> Path:
    (to / PREPROCESSOR).write_text(json.dumps(fields))
    return to


def test_it_is_read_as_transformers_writes_it(tmp_path: Path) -> None:
    fields: dict[str, Any] = {
        "resample": 3,
        "rescale_factor": 0.01,
        "image_mean": [0.1, 0.2, 0.3],
        "image_std": [0.4, 0.5, 0.6],
    }
    transformers.ViTImageProcessorPil(**fields).save_pretrained(tmp_path)
    read = read_preprocessing(tmp_path, IMAGES)
    assert (read.resample, read.scale, read.mean, read.deviation) == (3, 0.01, (0.1, 0.2, 0.3), (0.4, 0.5, 0.6))


def test_older_files_give_the_size_as_one_number_and_leave_the_scale_out(tmp_path: Path) -> None:
    fields = {"do_normalize": True, "do_resize": True, "image_mean": [0.5] * 3, "image_std": [0.5] * 3}
    read = read_preprocessing(written(tmp_path, size=224, resample=2, **fields), IMAGES)
    assert read == IMAGES


def test_steps_that_are_switched_off_change_nothing(tmp_path: Path) -> None:
    fields = {"image_mean": [0.1] * 3, "rescale_factor": 0.1, "do_center_crop": False, "do_pad": None}
    read = read_preprocessing(written(tmp_path, do_rescale=False, do_normalize=False, **fields), IMAGES)
    assert (read.scale, read.mean, read.deviation) == (1.0, (0.0,) * 3, (1.0,) * 3)


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"do_resize": False}, "do_resize is false; set it to true"),
        (
            {"do_center_crop": True},
            f"'do_center_crop' is not known of this architecture; remove it from {PREPROCESSOR}",
        ),
        ({"do_pad": True}, "'do_pad' is not known"),
        ({"sharpen": 2}, "'sharpen' is not known"),
        ({"size": {"shortest_edge": 224}}, "size is .*, must be image_size of config.json, 224"),
        ({"size": 384}, "size is '384', must be image_size of config.json, 224"),
        ({"resample": 6}, "resample is 6, must be one of Pillow's filters"),
        ({"image_mean": [0.5]}, "image_mean is .*, must be a number, or one for each of three channels"),
        ({"image_std": [0.5, 0, 0.5]}, "image_std is .*, must be positive"),
        ({"image_mean": 1e9}, "mean"),
    ],
)
def test_what_is_not_done_is_refused_by_name(fields: dict[str, Any], said: str, tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=said) as refused:
        read_preprocessing(written(tmp_path, **fields), IMAGES)
    assert PREPROCESSOR in str(refused.value)


def test_a_checkpoint_without_the_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=f"{PREPROCESSOR}: cannot be read"):
        read_preprocessing(tmp_path, IMAGES)
