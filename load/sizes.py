"""The sizes in which checkpoints are made; see `make_model.SHAPES` for what each means."""

from typing import Literal

Size = Literal["tiny", "small", "medium", "large", "light-kv"]
