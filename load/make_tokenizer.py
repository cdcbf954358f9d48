"""Trains a byte-level BPE tokenizer on generated text, for made checkpoints; the same seed gives the same tokenizer."""

import json
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import accumulate, chain
from pathlib import Path

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers

from livescale.shared.messages.parameters import Family
from livescale.shared.model.architectures import find_architecture

LINES = 6_000
WORDS_PER_LINE = 12
FREQUENT = 60  # as often a text that is to be taught is read
# Letters of one to four bytes in UTF-8, so that characters are split over tokens and detokenizers have work to do.
CONSONANTS = [*"bcdfghjklmnprstvwz", "sh", "th", "ñ", "ж", "ש"]
VOWELS = [*"aeiou", "ea", "ou", "é", "ü", "я", "語"]
ENDS = [*"....,,,;:!?", "…", " 🙂", " — "]


@dataclass(frozen=True)
class Dialect:
    """How a family's tokenizer looks from outside: special tokens and the chat template that uses them."""

    special_tokens: tuple[str, ...]
    bos: str | None
    end_of_text: str
    end_of_turn: str
    turn: tuple[str, str, str]  # what stands before the role, after it, and at the end
    chat_template: str
    template_in_own_file: bool
    encodes: bool = False  # a text, or two of them, stands between tokens of their own


DIALECTS: dict[Family, Dialect] = {
    "llama": Dialect(
        special_tokens=(
            "<|begin_of_text|>",
            "<|end_of_text|>",
            "<|start_header_id|>",
            "<|end_header_id|>",
            "<|eot_id|>",
        ),
        bos="<|begin_of_text|>",
        end_of_text="<|end_of_text|>",
        end_of_turn="<|eot_id|>",
        turn=("<|start_header_id|>", "<|end_header_id|>\n\n", "<|eot_id|>"),
        chat_template=(
            "{{ bos_token }}"
            "{% for message in messages %}"
            "<|start_header_id|>{{ message['role'] }}<|end_header_id|>\n\n{{ message['content'] }}<|eot_id|>"
            "{% endfor %}"
            "{% if add_generation_prompt %}<|start_header_id|>assistant<|end_header_id|>\n\n{% endif %}"
        ),
        template_in_own_file=False,
    ),
    "qwen2": Dialect(
        special_tokens=("<|endoftext|>", "<|im_start|>", "<|im_end|>"),
        bos=None,
        end_of_text="<|endoftext|>",
        end_of_turn="<|im_end|>",
        turn=("<|im_start|>", "\n", "<|im_end|>\n"),
        chat_template=(
            "{% for message in messages %}"
            "<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n"
            "{% endfor %}"
            "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
        ),
        template_in_own_file=True,
    ),
}

ENCODER = Dialect(
    special_tokens=("[PAD]", "[UNK]", "[CLS]", "[SEP]"),
    bos=None,
    end_of_text="[PAD]",
    end_of_turn="[SEP]",
    turn=("", "", ""),
    chat_template="",
    template_in_own_file=False,
    encodes=True,
)

# Special in checkpoints that use them.
TAUGHT_TOKENS = ("[TOOL_CALLS]", "<|channel|>", "<|message|>", "<|start|>", "<|end|>", "<|constrain|>", "<|call|>")


def dialect_of(family: Family) -> Dialect:
    """The dialect of a made model: Qwen's for all generations of Qwen, Llama's for all others that generate."""
    architecture = find_architecture(family)
    if architecture is not None and not architecture.generates:
        return ENCODER
    return DIALECTS["qwen2" if family.startswith("qwen") else "llama"]


def taught_dialect(family: Family) -> Dialect:
    """The family's, with a template that knows tools and reasoning, and the special tokens of some formats of calls."""
    plain = dialect_of(family)
    begin, middle, end = plain.turn
    template = "".join(
        (
            "{{ bos_token }}" if plain.bos else "",
            "{% if tools %}" + begin + "system" + middle + "Tools:",
            "{% for tool in tools %} {{ tool.function.name }}"
            "({{ (tool.function.parameters or {}).get('properties', {}) | join(', ') }}){% endfor %}" + end,
            "{% endif %}{% for message in messages %}" + begin + "{{ message.role }}" + middle,
            "{% if message.reasoning_content %}<think>\n{{ message.reasoning_content }}\n</think>\n\n{% endif %}",
            "{{ message.content }}{% for call in message.tool_calls or [] %}\n<tool_call>\n",
            '{"name": {{ call.function.name | tojson }}, "arguments": {{ call.function.arguments | tojson }}}',
            "\n</tool_call>{% endfor %}" + end + "{% endfor %}",
            "{% if add_generation_prompt %}" + begin + "assistant" + middle + "{% endif %}",
        )
    )
    return replace(plain, special_tokens=(*plain.special_tokens, *TAUGHT_TOKENS), chat_template=template)


def make_tokenizer(dialect: Dialect, vocab_size: int, seed: int, texts: Sequence[str] = ()) -> Tokenizer:
    """A tokenizer of exactly `vocab_size` tokens, with words of these texts among them."""
    return Tokenizer.from_str(_trained(dialect, vocab_size, seed, tuple(texts)))


@cache  # families share dialects, and to train one takes half a second
def _trained(dialect: Dialect, vocab_size: int, seed: int, texts: tuple[str, ...]) -> str:
    """The tokenizer as its file has it."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=list(dialect.special_tokens),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(chain(generated_text(random.Random(seed)), texts * FREQUENT), trainer)
    if tokenizer.get_vocab_size() != vocab_size:
        raise RuntimeError(f"the generated text gave {tokenizer.get_vocab_size()} tokens, not {vocab_size}")
    if dialect.bos is not None:
        bos = (dialect.bos, tokenizer.token_to_id(dialect.bos))
        tokenizer.post_processor = processors.TemplateProcessing(single=f"{bos[0]} $A", special_tokens=[bos])
    if dialect.encodes:
        special = [(token, tokenizer.token_to_id(token)) for token in ("[CLS]", "[SEP]")]
        tokenizer.post_processor = processors.TemplateProcessing(
            single="[CLS] $A [SEP]", pair="[CLS]:0 $A:0 [SEP]:0 $B:1 [SEP]:1", special_tokens=special
        )
    text: str = tokenizer.to_str()
    return text


def save_tokenizer(tokenizer: Tokenizer, dialect: Dialect, directory: Path) -> None:
    """Both places where checkpoints keep a chat template occur: tokenizer_config.json and chat_template.jinja."""
    (directory / "tokenizer.json").write_text(tokenizer.to_str(pretty=True), encoding="utf-8")
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": dialect.bos,
        "eos_token": dialect.end_of_turn,
        "pad_token": dialect.end_of_text,
    }
    if not dialect.chat_template:
        pass
    elif dialect.template_in_own_file:
        (directory / "chat_template.jinja").write_text(dialect.chat_template)
    else:
        config["chat_template"] = dialect.chat_template
    (directory / "tokenizer_config.json").write_text(json.dumps(config, indent=2) + "\n")


def generated_text(chance: random.Random) -> Iterator[str]:
    """Lines of made-up words, frequent ones first as in natural text (Zipf)."""
    words = [_word(chance) for _ in range(20_000)]
    cumulated = list(accumulate(1 / rank for rank in range(10, 10 + len(words))))
    for _ in range(LINES):
        line = chance.choices(words, cum_weights=cumulated, k=WORDS_PER_LINE)
        yield f"{line[0].capitalize()} {' '.join(line[1:])} {chance.randrange(10_000)}{chance.choice(ENDS)}"


def _word(chance: random.Random) -> str:
    syllables = chance.choice((1, 2, 2, 3, 3, 4))
    return "".join(chance.choice(CONSONANTS) + chance.choice(VOWELS) for _ in range(syllables))
