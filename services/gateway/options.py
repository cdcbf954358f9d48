"""The part of a request's body that says how tokens are chosen and what form the answer has: OpenAI's and vLLM's names.

Both the checks and the documentation are made from it.
"""

from typing import Annotated, Any

import msgspec
from msgspec import Meta

from livescale.shared.messages.message import TokenId
from livescale.shared.messages.requests import MOST_LOGPROBS, Penalty

MOST_CHOICES = 128
MOST_ALTERNATIVES = 1024
StopString = Annotated[str, Meta(min_length=1, max_length=1024)]
Stops = Annotated[list[StopString], Meta(max_length=64)]
TopLogprobs = Annotated[int, Meta(ge=0, le=MOST_LOGPROBS)]
Choices = Annotated[int, Meta(ge=1, le=MOST_CHOICES)]
RequestPriority = Annotated[
    int, Meta(description="Requests with smaller values are served earlier", ge=-(2**31), le=2**31 - 1)
]
RequestTimeout = Annotated[
    Annotated[float, Meta(gt=0)] | None,
    Meta(description="Seconds until the request ends with an error; the gateway sets default and maximum"),
]
Schema = dict[str, Any]
SchemaOrText = Annotated[Schema | str, Meta(description="A JSON schema, as such or as text")]
Pattern = Annotated[str, Meta(min_length=1, description="A regular expression of the whole answer")]
Alternatives = Annotated[
    list[Annotated[str, Meta(min_length=1)]],
    Meta(min_length=1, max_length=MOST_ALTERNATIVES, description="The answer is one of these"),
]
GrammarText = Annotated[str, Meta(min_length=1, description="A grammar: Lark, as llguidance has it, or EBNF")]


class TextFormat(msgspec.Struct, frozen=True, tag_field="type", tag="text", forbid_unknown_fields=True):
    """The default `response_format`: any text."""


class JsonObjectFormat(msgspec.Struct, frozen=True, tag_field="type", tag="json_object", forbid_unknown_fields=True):
    """A `response_format` that asks for any JSON object."""


class NamedSchema(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A JSON schema with a name. The answer follows it, `strict` or not."""

    name: str = ""
    description: str | None = None
    schema: Schema | None = None
    strict: bool | None = None


class JsonSchemaFormat(msgspec.Struct, frozen=True, tag_field="type", tag="json_schema", forbid_unknown_fields=True):
    """A `response_format` that asks for JSON by a schema."""

    json_schema: NamedSchema


class StructuredOutputs(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """vLLM's `structured_outputs`: exactly one of the first five fields is set."""

    json: SchemaOrText | None = None
    regex: Pattern | None = None
    choice: Alternatives | None = None
    grammar: GrammarText | None = None
    json_object: bool | None = None
    disable_any_whitespace: bool = False
    disable_additional_properties: bool = False
    whitespace_pattern: str | None = None


class AnswerOptions(msgspec.Struct, frozen=True, kw_only=True):
    """How tokens are chosen, in vLLM's order: allowed tokens and bad words, bias, penalties, temperature, min_p, top_k,
    top_p. Then what form the answer has; without any of these it is free."""

    n: Annotated[Choices, Meta(description="Number of choices for each prompt; choice 0 is that of n = 1")] = 1
    seed: Annotated[
        Annotated[int, Meta(ge=-(2**63), le=2**63 - 1)] | None,
        Meta(description="The same seed gives the same tokens; by default a fresh one"),
    ] = None
    temperature: Annotated[
        Annotated[float, Meta(ge=0, le=2)] | None,
        Meta(description="0 is greedy. By default as in the checkpoint's generation_config.json, else 1"),
    ] = None
    top_p: Annotated[
        Annotated[float, Meta(gt=0, le=1)] | None,
        Meta(description="By default as in the checkpoint's generation_config.json, else 1 (off)"),
    ] = None
    top_k: Annotated[
        Annotated[int, Meta(ge=-1, le=2**31 - 1)] | None,
        Meta(description="0 and -1 are off. By default as in the checkpoint's generation_config.json, else off"),
    ] = None
    min_p: Annotated[
        Annotated[float, Meta(ge=0, le=1)] | None,
        Meta(description="Only tokens with at least this share of the likeliest token's probability; 0 is off"),
    ] = None
    presence_penalty: Annotated[
        Penalty, Meta(description="Subtracted from the logits of tokens that were generated")
    ] = 0.0
    frequency_penalty: Annotated[
        Penalty, Meta(description="Subtracted from a token's logit for each time that it was generated")
    ] = 0.0
    repetition_penalty: Annotated[
        Annotated[float, Meta(gt=0, le=100)] | None,
        Meta(
            description="Logits of tokens in the prompt or the answer are divided by it, or multiplied where negative"
        ),
    ] = None
    logit_bias: Annotated[
        Annotated[dict[TokenId, Annotated[float, Meta(ge=-100, le=100)]], Meta(max_length=1024)],
        Meta(description="By token id, what is added to its logit"),
    ] = {}
    bad_words: Annotated[
        Annotated[list[StopString], Meta(max_length=256)], Meta(description="Words that are not generated")
    ] = []
    allowed_token_ids: Annotated[
        Annotated[list[TokenId], Meta(min_length=1, max_length=4096)] | None,
        Meta(description="No other tokens are generated"),
    ] = None
    logprob_token_ids: Annotated[
        Annotated[list[TokenId], Meta(max_length=MOST_LOGPROBS)],
        Meta(description="With logprobs: return those of these tokens instead of the likeliest"),
    ] = []
    use_beam_search: Annotated[
        bool, Meta(description="The n likeliest continuations as a whole are the choices; n is at most 10")
    ] = False
    length_penalty: Annotated[
        float, Meta(description="With use_beam_search: higher values favour longer answers", ge=-10, le=10)
    ] = 1.0
    stop: Annotated[StopString | Stops | None, Meta(description="Up to 64 strings that end the text")] = None
    stop_token_ids: Annotated[
        Annotated[list[TokenId], Meta(max_length=256)], Meta(description="Tokens that end the text")
    ] = []
    include_stop_str_in_output: Annotated[
        bool, Meta(description="What ended the text is a part of it: stop string or stop token")
    ] = False
    min_tokens: Annotated[int, Meta(description="Nothing ends the text before this many tokens", ge=0)] = 0
    ignore_eos: Annotated[bool, Meta(description="Generate on after an end-of-sequence token")] = False
    skip_special_tokens: Annotated[bool, Meta(description="Leave special tokens out of the text")] = True
    response_format: Annotated[
        TextFormat | JsonObjectFormat | JsonSchemaFormat | None,
        Meta(description="text, json_object, or json_schema with a schema that the answer follows"),
    ] = None
    structured_outputs: Annotated[
        StructuredOutputs | None, Meta(description="One of json, regex, choice, grammar, json_object")
    ] = None
    guided_json: SchemaOrText | None = None
    guided_regex: Pattern | None = None
    guided_choice: Alternatives | None = None
    guided_grammar: GrammarText | None = None


def stop_strings(options: AnswerOptions) -> list[str]:
    """The stop strings that a body asks for, as a list."""
    if options.stop is None:
        return []
    return [options.stop] if isinstance(options.stop, str) else options.stop


def spellings(word: str) -> tuple[str, str]:
    """How a bad word may begin: a text, or a word within one."""
    bare = word.lstrip()
    return bare, f" {bare}"


def banned(plain: list[int], spaced: list[int]) -> list[list[int]]:
    """The sequences of tokens that a bad word is, by the tokens of its spellings, as in vLLM: the second counts where
    the space makes its first token another one."""
    if not plain:
        return []
    same_length = len(spaced) == len(plain)
    return [plain, spaced] if same_length and spaced[0] != plain[0] else [plain]
