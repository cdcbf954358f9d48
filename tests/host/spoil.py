"""Rewrites parts of safetensors checkpoints, to see what is refused."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

Header = dict[str, Any]


def rewrite_header(file: Path, change: Callable[[Header], Header | None]) -> None:
    """Change a file's header in place or replace it; the tensors' bytes stay."""
    data = file.read_bytes()
    size = int.from_bytes(data[:8], "little")
    header = json.loads(data[8 : 8 + size])
    changed = json.dumps(change(header) or header).encode()
    file.write_bytes(len(changed).to_bytes(8, "little") + changed + data[8 + size :])


def rewrite_json(file: Path, **fields: Any) -> None:
    file.write_text(json.dumps(json.loads(file.read_text()) | fields))


def weight_map(directory: Path) -> dict[str, str]:
    found: dict[str, str] = json.loads((directory / "model.safetensors.index.json").read_text())["weight_map"]
    return found
