"""What becomes of each parameter of OpenAI's and vLLM's that the bodies do not have: ignored, or refused, and why.

A parameter that is refused would change the answer: a client would believe that its wish was met.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from livescale.services.gateway.bodies import ChatRequest, CompletionRequest
from livescale.services.gateway.messages_request import BLOCKS, CountRequest, MessagesRequest
from livescale.services.gateway.pooling_shapes import (
    ClassifyRequest,
    EmbeddingRequest,
    PoolingRequest,
    RerankRequest,
    ScoreRequest,
)
from livescale.services.gateway.responses_request import ResponsesRequest


@dataclass(frozen=True)
class Refused:
    """Why a parameter is refused, and what to do. The `neutral` values ask for nothing and are accepted; null always
    is."""

    reason: str
    neutral: tuple[object, ...] = ()


POOLING: tuple[type, ...] = (PoolingRequest, EmbeddingRequest, ClassifyRequest, ScoreRequest, RerankRequest)
OLD_TOOLS = "Use tools and tool_choice"
TEXT_ONLY = "Only text is understood; leave it out"

_REFUSED: Mapping[str, Refused] = {
    "logits_processors": Refused("No code of clients runs here; use logit_bias or bad_words", ([],)),
    "thinking_token_budget": Refused("Reasoning is not cut short; use max_tokens, or reasoning_effort none", (-1,)),
    "watermarking": Refused("No text is watermarked; leave it out", (False,)),
    "mm_processor_kwargs": Refused(TEXT_ONLY, ({},)),
    "kv_transfer_params": Refused("Workers send KV to each other without it; leave it out"),
    "ec_transfer_params": Refused(TEXT_ONLY),
    "vllm_xargs": Refused("There are no extensions that could read it; leave it out", ({},)),
}
_IGNORED: Mapping[str, str] = {
    "spaces_between_special_tokens": "As in vLLM, fast tokenizers do not read it",
    "routed_experts_prompt_start": "As in vLLM, it has no effect where routing is not returned",
    "user": "For OpenAI's records",
    "metadata": "For OpenAI's records",
    "safety_identifier": "For OpenAI's records",
}
# The kinds of parts that the content of a message may have.
PARTS: Mapping[type, frozenset[str]] = {
    CountRequest: BLOCKS,
    MessagesRequest: BLOCKS,
    ClassifyRequest: frozenset({"image_url"}),
}
_REFUSED_MESSAGES: Mapping[str, Refused] = {
    "container": Refused("Tools do not run here; leave it out"),
    "mcp_servers": Refused("Tools do not run here; leave it out", ([],)),
    "context_management": Refused("Nothing is taken out of a conversation; leave it out"),
    "speed": Refused("All requests are served alike; leave it out", ("standard",)),
}
_IGNORED_MESSAGES: Mapping[str, str] = {
    "cache_control": "Prompts that begin alike share their KV anyway",
    "diagnostics": "For Anthropic's records",
    "inference_geo": "Requests are served where this system runs",
}
_POOLING_REFUSED: Mapping[str, Refused] = {
    "messages": Refused("Give texts or token ids in input"),
    "embed_dtype": Refused("Vectors are float32", ("float32",)),
    "endianness": Refused("Numbers are little-endian", ("native", "little")),
    "task": Refused("The checkpoint says what a model does; leave it out"),
    "mm_processor_kwargs": Refused(TEXT_ONLY, ({},)),
}
REFUSED: Mapping[type, Mapping[str, Refused]] = {
    CompletionRequest: {
        **_REFUSED,
        "suffix": Refused("Text is only generated after the prompt; put it into the prompt", ("",)),
        "prompt_embeds": Refused("Give texts or token ids in prompt"),
    },
    ChatRequest: {
        **_REFUSED,
        "functions": Refused(OLD_TOOLS, ([],)),
        "function_call": Refused(OLD_TOOLS, ("none", "auto")),
        "modalities": Refused(TEXT_ONLY, (["text"],)),
        "audio": Refused(TEXT_ONLY),
        "media_io_kwargs": Refused(TEXT_ONLY, ({},)),
        "web_search_options": Refused("Nothing is searched; leave it out"),
        "moderation": Refused("Nothing is moderated; leave it out"),
        "store": Refused("No answer is stored; leave it out", (False,)),
        "service_tier": Refused("All requests are served alike; use priority", ("auto", "default")),
        "prompt_cache_retention": Refused("Workers keep KV as they are set to; leave it out", ("in_memory",)),
        "prompt_cache_options": Refused("Use prompt_cache_key", ({}, {"mode": "implicit"})),
    },
    CountRequest: _REFUSED_MESSAGES,
    MessagesRequest: {
        **_REFUSED_MESSAGES,
        "service_tier": Refused("All requests are served alike; leave it out", ("auto", "standard_only")),
    },
    **dict.fromkeys(POOLING, _POOLING_REFUSED),
    ClassifyRequest: {name: refused for name, refused in _POOLING_REFUSED.items() if name != "messages"},
    ResponsesRequest: {
        "conversation": Refused("Use previous_response_id"),
        "prompt": Refused("There are no stored prompts; use input"),
        "service_tier": Refused("All requests are served alike; leave it out", ("auto", "default")),
        "prompt_cache_retention": Refused("Workers keep KV as they are set to; leave it out", ("in_memory",)),
        "context_management": Refused("Use truncation", ([],)),
        "prompt_cache_options": Refused("Use prompt_cache_key", ({}, {"mode": "implicit"})),
        "moderation": Refused("Nothing is moderated; leave it out"),
        "background_options": Refused(
            "What is made in the background is begun at once; leave it out", ({}, {"completion_window": "soonest"})
        ),
        "access_programs": Refused("There are no such programs; leave it out", ({},)),
        "image": Refused(TEXT_ONLY, ({},)),
    },
}
IGNORED: Mapping[type, Mapping[str, str]] = {
    CompletionRequest: _IGNORED,
    **{body: {"user": _IGNORED["user"]} for body in POOLING},
    ChatRequest: {
        **_IGNORED,
        "verbosity": "A hint; say it in the messages",
        "prediction": "A hint that may save OpenAI time",
    },
    CountRequest: _IGNORED_MESSAGES,
    MessagesRequest: {**_IGNORED_MESSAGES, "metadata": "For Anthropic's records"},
    ResponsesRequest: {
        "user": "For OpenAI's records",
        "safety_identifier": "For OpenAI's records",
        "max_tool_calls": "It limits tools that run at the server, and none do",
        "stream_options": "Nothing is hidden in the length of events",
    },
}
