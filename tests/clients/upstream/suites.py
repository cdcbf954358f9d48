"""Which of other people's tests are run, and those of them that are expected to fail, each with its reason."""

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Suite:
    """Test files of a checkout, what is imported from it, and by a part of a test's name why it fails."""

    files: tuple[str, ...]
    imports: tuple[str, ...]
    expected: Mapping[str, str] = field(default_factory=dict)


OPENAI = Suite(
    files=(
        "tests/api_resources/chat/test_completions.py",
        "tests/api_resources/test_completions.py",
        "tests/api_resources/test_embeddings.py",
        "tests/api_resources/test_models.py",
        "tests/api_resources/test_responses.py",
    ),
    imports=("src", "."),
)
SUITES: Mapping[str, Suite] = {"openai": OPENAI}
