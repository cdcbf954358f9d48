"""Models by their size have the parameters that their names promise."""

from pathlib import Path

import pytest

from livescale.load.make_model import make_model
from livescale.load.scenario.sizes import SIZES, find_config
from livescale.shared.model.block_layout import block_layouts


@pytest.mark.parametrize("size", SIZES)
def test_a_size_is_what_it_says(size: str) -> None:
    parameters = sum(layout.size_bytes for layout in block_layouts(SIZES[size], "bfloat16")) / 2
    assert parameters == pytest.approx(float(size[:-1]) * 1e9, rel=0.05)


def test_a_directory_counts_from_beside_the_scenario(tmp_path: Path) -> None:
    make_model(tmp_path / "models" / "tiny", "llama", "tiny", 0)
    path, config = find_config("models/tiny", tmp_path)
    assert path == str(tmp_path / "models" / "tiny")
    assert config.num_hidden_layers == 3
    with pytest.raises(ValueError, match="neither a directory"):
        find_config("models/large", tmp_path)
