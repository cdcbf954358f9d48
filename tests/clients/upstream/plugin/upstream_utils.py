"""`tests.utils` of vLLM, with what stands in for it."""

import sys
from pathlib import Path
from types import ModuleType


def put_utils(checkout: Path, **others: object) -> None:
    """Let modules of vLLM's tests import the path of their checkout, and `others` by their names."""
    utils = ModuleType("tests.utils")
    vars(utils).update(others, VLLM_PATH=checkout)
    sys.modules["tests.utils"] = utils
