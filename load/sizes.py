"""How large a made model is."""

from typing import Literal

Size = Literal["tiny", "small", "medium", "large"]
