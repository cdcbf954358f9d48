"""Which of other people's tests are run, and those of them that are expected to fail, each with its reason."""

from collections.abc import Mapping
from dataclasses import dataclass, field

CALLS = "test_(method|raw_response|streaming_response)"
NOBODY_MADE = "it names a response that nobody has made"


@dataclass(frozen=True)
class Suite:
    """Test files of a checkout, what is imported from it, and by a pattern of tests' names why they fail."""

    files: tuple[str, ...]
    imports: tuple[str, ...]
    options: tuple[str, ...] = ()
    expected: Mapping[str, str] = field(default_factory=dict)


OPENAI = Suite(
    files=(
        "tests/api_resources/chat/test_completions.py",
        "tests/api_resources/test_completions.py",
        "tests/api_resources/test_embeddings.py",
        "tests/api_resources/test_models.py",
        "tests/api_resources/test_responses.py",
        "tests/api_resources/responses/test_input_items.py",
        "tests/api_resources/responses/test_input_tokens.py",
    ),
    imports=("src", "."),
    expected={
        f"chat/test_completions.py.*{CALLS}_(retrieve|update|list|delete)": "chats are not stored",
        f"test_models.py.*{CALLS}_delete": "models are removed by /admin/v1/models",
        # The second overload asks for a stream, which is refused by name.
        f"test_responses.py.*{CALLS}_(retrieve(_with_all_params)?_overload_1|delete|cancel)": NOBODY_MADE,
        f"test_input_items.py.*{CALLS}_list": NOBODY_MADE,
        f"test_responses.py.*{CALLS}_compact": "conversations are not compacted; there is truncation",
    },
)
VLLM = Suite(
    files=(
        "tests/entrypoints/openai/completion/test_completion.py",
        "tests/entrypoints/openai/completion/test_token_in_token_out.py",
        "tests/entrypoints/openai/chat_completion/test_chat.py",
        "tests/entrypoints/openai/chat_completion/test_chat_completion.py",
        "tests/entrypoints/openai/chat_completion/test_chat_echo.py",
        "tests/entrypoints/openai/chat_completion/test_chat_logit_bias_validation.py",
        "tests/entrypoints/openai/responses/test_simple.py",
        "tests/entrypoints/openai/test_return_token_ids.py",
    ),
    imports=(".",),
    expected={
        "test_single_completion": "it counts tokens as the tokenizer of OPT does",
        "test_echo_logprob_completion": "skip_special_tokens leaves token 0 out of the echo, as it is special here",
        "test_chat_completion_request_n_parameter": "it reads a limit from vLLM itself",
        "test_return_token_ids.py.*test_chat_completion_with_(tool_use|emoji)": "it wants the chat template of Qwen2.5",
        "test_per_request_metrics": "the response has no metrics of its request; /metrics and traces have them",
        "responses/test_simple.py.*reasoning": "it wants Qwen3-8B to reason; a taught model does so in its lessons",
        "responses/test_simple.py.*streaming_types": "its fixture is in a conftest, and these start vLLM",
    },
    options=("--noconftest", "--continue-on-collection-errors", "-o", "asyncio_mode=auto"),
)
# For a model that has learned `lessons`: others call no tool.
VLLM_TOOLS = Suite(
    files=(
        "tests/tool_use/test_chat_completions.py",
        "tests/tool_use/test_parallel_tool_calls.py",
        "tests/tool_use/test_tool_calls.py",
    ),
    imports=(".",),
    options=("-p", "upstream_tools", "--noconftest", "-o", "asyncio_mode=auto"),
)
SUITES: Mapping[str, Suite] = {"openai": OPENAI, "vllm": VLLM, "vllm-tools": VLLM_TOOLS}
