"""`config.json` of a checkpoint, read key by key. What nobody has read and nobody has listed as harmless is refused by
name, because it may change what the model computes. Pure."""

from collections.abc import Callable, Mapping, Set
from typing import Any, TypeVar

T = TypeVar("T")

_REQUIRED: Any = object()
LARGEST_SIZE = 2**24

# Keys that change nothing of what is computed from tokens: how a model was trained, stored or is to be sampled from.
HARMLESS = {
    *("_name_or_path", "_attn_implementation", "_attn_implementation_autoset", "architectures", "auto_map"),
    *("hidden_dropout_prob", "attention_probs_dropout_prob", "is_matryoshka", "matryoshka_dimensions"),
    *("attention_dropout", "attn_pdrop", "embd_pdrop", "resid_pdrop", "hidden_dropout", "classifier_dropout"),
    *("dtype", "torch_dtype", "transformers_version", "model_type", "name", "id2label", "label2id", "problem_type"),
    *("initializer_range", "use_cache", "cache_implementation", "pretraining_tp", "torchscript", "use_bfloat16"),
    *("bos_token_id", "eos_token_id", "pad_token_id", "unk_token_id", "sep_token_id", "decoder_start_token_id"),
    *("return_dict", "output_attentions", "output_hidden_states", "return_dict_in_generate", "output_scores"),
    *("task_specific_params", "finetuning_task", "tokenizer_class", "prefix", "gradient_checkpointing"),
    *("use_flash_attn", "flash_attn_2_enabled", "unsloth_version", "unsloth_fixed", "max_length", "min_length"),
    *("do_sample", "temperature", "top_k", "top_p", "typical_p", "repetition_penalty", "length_penalty"),
    *("num_beams", "num_beam_groups", "num_return_sequences", "no_repeat_ngram_size", "early_stopping"),
    *("diversity_penalty", "encoder_no_repeat_ngram_size", "exponential_decay_length_penalty", "bad_words_ids"),
    *("begin_suppress_tokens", "suppress_tokens", "forced_bos_token_id", "forced_eos_token_id"),
    *("remove_invalid_values", "chunk_size_feed_forward", "tf_legacy_loss", "tie_encoder_decoder"),
    *("router_aux_loss_coef", "output_router_logits", "is_decoder"),
    *("dropout", "activation_dropout", "layerdrop", "init_std", "n_ctx", "reorder_and_upcast_attn", "summary_type"),
    *("summary_use_proj", "summary_activation", "summary_proj_to_labels", "summary_first_dropout"),
    *("is_llama_config", "is_qwen2_config", "neftune_noise_alpha", "max_sequence_length", "transformers.js_config"),
    "output_past",  # what use_cache was called at first
    *("encoder_stride", "pooler_act", "pooler_output_size"),  # of ViT, whose classifier has no pooler
}
# What the keys that ask for another kind of model ask for, and what to do instead.
REMEDIES = {
    "vision_config": "a request carries tokens only; use the text model's own checkpoint",
    "audio_config": "a request carries tokens only; use the text model's own checkpoint",
    "text_config": "a request carries tokens only; use the text model's own checkpoint",
}


class CheckpointError(ValueError):
    """A checkpoint that cannot be served; the message names the file and the remedy."""


class ConfigFile:
    """The content of `config.json`. Each method reads one key and raises CheckpointError for a value of another type.

    A key whose value is null counts as absent.
    """

    def __init__(self, values: Mapping[str, Any]) -> None:
        self._nulls = {key for key, value in values.items() if value is None}
        self._values = {key: value for key, value in values.items() if value is not None}
        self._read: set[str] = set()

    def get(self, key: str, default: T = _REQUIRED, *, wanted: Callable[[object], bool], said: str) -> T:
        """The value of a key, which `wanted` accepts."""
        self._read.add(key)
        value = self._values.get(key, default)
        if value is _REQUIRED:
            raise CheckpointError(f"{key} is missing; download the file again")
        if key in self._values and not wanted(value):
            raise CheckpointError(f"{key} is {str(value)[:80]!r}, must be {said}")
        found: T = value
        return found

    def size(self, key: str, default: int = _REQUIRED) -> int:
        """Read a positive whole number. Raises CheckpointError."""
        if self.whole(key, default) < 1:
            raise CheckpointError(f"{key} is {self._values[key]}, must be positive; repair or download the file again")
        return self.whole(key, default)

    def whole(self, key: str, default: int = _REQUIRED) -> int:
        return self.get(key, default, wanted=_is_size, said=f"a whole number up to {LARGEST_SIZE}")

    def number(self, key: str, default: float = _REQUIRED) -> float:
        return float(self.get(key, default, wanted=is_number, said="a number"))

    def positive(self, key: str, default: float = _REQUIRED) -> float:
        """Read a number above zero. Raises CheckpointError."""
        found = self.number(key, default)
        if found <= 0:
            raise CheckpointError(f"{key} is {found}, must be above zero")
        return found

    def unless_null(self, key: str, default: float) -> float:
        """`default`, or 0 where the file says null: what transformers takes for a key that may be switched off."""
        return 0 if key in self._nulls else default

    def flag(self, key: str, default: bool = False) -> bool:
        return self.get(key, default, wanted=lambda value: isinstance(value, bool), said="true or false")

    def text(self, key: str, default: str = _REQUIRED) -> str:
        return self.get(key, default, wanted=lambda value: isinstance(value, str), said="a string")

    def mapping(self, key: str) -> dict[str, Any]:
        """Read an object, which is empty where the key is absent."""
        none: dict[str, Any] = {}
        return dict(self.get(key, none, wanted=lambda value: isinstance(value, dict), said="an object"))

    def texts(self, key: str) -> list[str]:
        """A list of strings, empty where it is absent."""
        none: list[str] = []
        return self.get(key, none, wanted=_are(lambda one: isinstance(one, str)), said="a list of strings")

    def wholes(self, key: str) -> list[int]:
        """A list of whole numbers, empty where it is absent."""
        none: list[int] = []
        return self.get(key, none, wanted=_are(_is_size), said="a list of whole numbers")

    def square(self, key: str, default: int) -> int:
        """The side of a square: one positive whole number, or two that are the same."""
        side = self.get(key, default, wanted=_is_square, said="a positive whole number, or two that are the same")
        return side[0] if isinstance(side, list) else side

    def token_ids(self, key: str) -> list[int]:
        """One token id or a list of them, empty where it is absent."""
        none: list[int] = []
        found: int | list[int] = self.get(
            key, none, wanted=lambda value: _is_id(value) or _are(_is_id)(value), said="a token id or a list of them"
        )
        return [found] if isinstance(found, int) else found

    def only(self, **values: bool | int | str) -> None:
        """Raise CheckpointError for the first of these keys that says anything but this value, which alone is
        served."""
        for key, served in values.items():
            self._read.add(key)
            found = self._values.get(key, served)
            if found != served:
                raise CheckpointError(
                    f"{key} is {str(found)[:80]!r}, and {str(served)!r} alone is served of this architecture; use "
                    "another checkpoint"
                )

    def refuse(self, *keys: str) -> None:
        """Raise CheckpointError for the first of these keys that is there, with its remedy."""
        for key in keys:
            if key in self._values:
                raise CheckpointError(f"{key}: {REMEDIES[key]}")

    def refuse_unread(self, harmless: Set[str] = HARMLESS, file: str = "config.json") -> None:
        """Raise CheckpointError for a key of this file that is neither read nor harmless."""
        unread = sorted(self._values.keys() - self._read - harmless)
        # A flag that is off asks for nothing.
        asking = [key for key in unread if self._values[key] is not False]
        if asking:
            raise CheckpointError(
                f"{asking[0][:80]!r} is not known of this architecture; remove it from {file} if the model "
                "computes the same without it"
            )


def is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) <= 1e15


def _is_size(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and -1 <= value <= LARGEST_SIZE


def _is_square(value: object) -> bool:
    sides = value if isinstance(value, list) else [value, value]
    return len(sides) == 2 and sides[0] == sides[1] and all(_is_size(side) and side not in (-1, 0) for side in sides)


def _is_id(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and -(2**31) <= value < 2**31


def _are(wanted: Callable[[object], bool]) -> Callable[[object], bool]:
    return lambda value: isinstance(value, list) and all(map(wanted, value))
