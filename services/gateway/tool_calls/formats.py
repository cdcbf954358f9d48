"""The formats in which models write calls and reasoning: a table of states for each. Pure.

The names of parsers are vLLM's where it has them.
"""

from collections.abc import Mapping
from functools import partial

from livescale.services.gateway.tool_calls.machine import START, TEXT, Blanks, Format, Free, Mark, Part
from livescale.services.gateway.tool_calls.message import Calls
from livescale.services.gateway.tool_calls.python_calls import PythonCalls
from livescale.services.gateway.tool_calls.readers import Arguments, JsonCall, Name
from livescale.services.gateway.tool_calls.tagged import TaggedArguments

_MARKED = partial(JsonCall, known=False)
_KNOWN = partial(JsonCall, known=True)  # where no marker tells a call from an answer in JSON

_HERMES_TEXT = Free((Mark("<tool_call>", "call"),))
HERMES: Format = {
    START: _HERMES_TEXT,
    TEXT: _HERMES_TEXT,
    "call": Blanks((Mark("{", "object", kept=True),)),
    "object": Part(_MARKED, "after"),
    "after": Free((Mark("<tool_call>", "call"), Mark("</tool_call>", "after", closes=True))),
}

_LLAMA_MARKS = (Mark("{", "object", kept=True), Mark("<|python_tag|>", "call"))
LLAMA3_JSON: Format = {
    START: Blanks(_LLAMA_MARKS, otherwise=TEXT),
    TEXT: Free((Mark("<|python_tag|>", "call"),)),
    "call": Blanks((Mark("{", "object", kept=True),)),
    "object": Part(_KNOWN, "after"),
    "after": Blanks((*_LLAMA_MARKS, Mark(";", "after", closes=True)), otherwise=TEXT),
}

_MISTRAL_TEXT = Free((Mark("[TOOL_CALLS]", "calls"),))
MISTRAL: Format = {
    START: _MISTRAL_TEXT,
    TEXT: _MISTRAL_TEXT,
    "calls": Blanks((Mark("[", "list"),), otherwise="name"),
    "list": Blanks((Mark("{", "object", kept=True), Mark(",", "list", closes=True), Mark("]", TEXT, closes=True))),
    "object": Part(_MARKED, "list"),
    "name": Part(Name, "named"),
    "named": Blanks((Mark("[CALL_ID]", "id"), Mark("[ARGS]", "arguments"), Mark("{", "object_alone", kept=True))),
    "id": Free((Mark("[ARGS]", "arguments"),), "header"),
    "arguments": Blanks((Mark("{", "object_alone", kept=True),)),
    "object_alone": Part(Arguments, TEXT),
}

_QWEN_TEXT = Free((Mark("<tool_call>", "call"), Mark("<function=", "name")))
QWEN3_CODER: Format = {
    START: _QWEN_TEXT,
    TEXT: _QWEN_TEXT,
    "call": Blanks((Mark("<function=", "name"),)),
    "name": Part(Name, "named"),
    "named": Blanks((Mark(">", "parameters"),)),
    "parameters": Part(TaggedArguments, "after"),
    "after": Free((*_QWEN_TEXT.marks, Mark("</tool_call>", "after", closes=True))),
}

PYTHONIC: Format = {
    START: Blanks((Mark("[", "list"), Mark("<|python_start|>", "call")), otherwise=TEXT),
    TEXT: Free((Mark("<|python_start|>", "call"),)),
    "call": Blanks((Mark("[", "list"),)),
    "list": Part(PythonCalls, "after"),
    "after": Blanks((Mark("<|python_end|>", "after", closes=True),), otherwise=TEXT),
}


def _deepseek(name: str) -> str:
    return f"<|{name}|>".replace("|", "\N{FULLWIDTH VERTICAL LINE}").replace("_", "\u2581")


_DEEPSEEK_TEXT = Free((Mark(_deepseek("tool_calls_begin"), "calls"),))
_CALL = Mark(_deepseek("tool_call_begin"), "kind")
DEEPSEEK: Format = {
    START: _DEEPSEEK_TEXT,
    TEXT: _DEEPSEEK_TEXT,
    "calls": Blanks((_CALL,)),
    # In V3 and R1 it is "function", and the name comes after the separator; in V3.1 it is the name itself.
    "kind": Part(Name, "separator"),
    "separator": Blanks((Mark(_deepseek("tool_sep"), "separated"),)),
    "separated": Blanks((Mark("{", "arguments", kept=True),), otherwise="name"),
    "name": Part(Name, "named"),
    "named": Blanks((Mark("```json", "fenced"),)),
    "fenced": Blanks((Mark("{", "arguments", kept=True),)),
    "arguments": Part(Arguments, "after"),
    "after": Blanks(
        (
            _CALL,
            Mark("```", "after", closes=True),
            Mark(_deepseek("tool_call_end"), "after", closes=True),
            Mark(_deepseek("tool_calls_end"), TEXT, closes=True),
        ),
        otherwise=TEXT,
    ),
}

# What answers look like that are held to calls: a list of them, or the arguments of one.
CALL_LIST: Format = {
    START: Blanks((Mark("[", "list"),), otherwise=TEXT),
    TEXT: Free(),
    "list": MISTRAL["list"],
    "object": Part(_MARKED, "list"),
}
ARGUMENTS: Format = {
    START: Blanks((Mark("{", "object", kept=True),), otherwise=TEXT),
    TEXT: Free(),
    "object": Part(Arguments, TEXT),
}


def _channel(header: str, calls: Calls) -> str:
    """The state of a message of harmony: what it is and whom it is for stands in its header."""
    words = header.split()
    recipient = next((word.removeprefix("to=") for word in words if word.startswith("to=")), None)
    if recipient is not None:
        calls.name = recipient.removeprefix("functions.")
        return "arguments"
    return "analysis" if "analysis" in words else TEXT


_HARMONY_HEADS = (Mark("<|start|>", "header"), Mark("<|channel|>", "header"))
_HARMONY_ENDS = (
    Mark("<|end|>", "between", closes=True),
    Mark("<|call|>", "between", closes=True),
    Mark("<|return|>", "between", closes=True),
)
HARMONY: Format = {
    START: Blanks(_HARMONY_HEADS, otherwise=TEXT),
    TEXT: Free((*_HARMONY_HEADS, *_HARMONY_ENDS)),
    "header": Free(
        (Mark("<|channel|>", "header"), Mark("<|constrain|>", "header"), Mark("<|message|>", _channel)), "header"
    ),
    "analysis": Free((*_HARMONY_HEADS, *_HARMONY_ENDS), "reasoning"),
    "arguments": Blanks((Mark("{", "object", kept=True),)),
    "object": Part(Arguments, "between"),
    "between": Blanks((*_HARMONY_HEADS, *_HARMONY_ENDS), otherwise=TEXT),
}


def _thoughts(begin: str, end: str) -> Format:
    """Reasoning between two markers, at the beginning of an answer."""
    return {
        START: Blanks((Mark(begin, "thinking"),), otherwise=TEXT),
        OPENED: Blanks((Mark(begin, "thinking"),), otherwise="thinking"),
        "thinking": Free((Mark(end, TEXT, closes=True),), "reasoning"),
        TEXT: Free(),
    }


OPENED = "opened"  # the state at the beginning where the prompt ends within reasoning
THINK = _thoughts("<think>", "</think>")
MISTRAL_THINK = _thoughts("[THINK]", "[/THINK]")
CALLS: Mapping[str, Format] = {
    "hermes": HERMES,
    "llama3_json": LLAMA3_JSON,
    "mistral": MISTRAL,
    "qwen3_coder": QWEN3_CODER,
    "pythonic": PYTHONIC,
    "deepseek": DEEPSEEK,
    "harmony": HARMONY,
}
REASONING: Mapping[str, Format] = {"think": THINK, "mistral": MISTRAL_THINK, "harmony": HARMONY}


def calls_of_template(source: str) -> str | None:
    """The name of the format in which a chat template tells models to call tools; None where none is known."""
    signs = (
        ("harmony", ("<|channel|>", "<|message|>")),
        ("deepseek", (_deepseek("tool_calls_begin"),)),
        ("mistral", ("[TOOL_CALLS]",)),
        ("qwen3_coder", ("<function=", "<parameter=")),
        ("hermes", ("<tool_call>",)),
        ("llama3_json", ('"parameters": dictionary of argument name',)),
        ("llama3_json", ("<|python_tag|>",)),
        ("pythonic", ("[func_name1(",)),
        ("pythonic", ("<|python_start|>",)),
    )
    return next((name for name, texts in signs if all(text in source for text in texts)), None)


def reasoning_of_template(source: str) -> str | None:
    """The name of the format in which models reason by this chat template; None where none is known."""
    signs = (("harmony", ("<|channel|>", "<|message|>")), ("think", ("</think>",)), ("mistral", ("[THINK]",)))
    return next((name for name, texts in signs if all(text in source for text in texts)), None)
