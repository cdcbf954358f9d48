"""What an architecture declares of itself, so that its checkpoints are served. Pure.

A declaration is a module of `architectures/`, called as `model_type` in config.json, that has an ARCHITECTURE.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from msgspec.structs import replace

from livescale.shared.messages.layers import Experts, Latent
from livescale.shared.messages.parameters import Activation, LayerKind, ModelConfig
from livescale.shared.model.declaration.checked_keys import REMEDY
from livescale.shared.model.declaration.config_file import CheckpointError, ConfigFile
from livescale.shared.model.declaration.experts import (
    Stacked,
    each_name,
    fused_shapes,
    fused_source,
    renamed_part,
    stacked_sources,
    tensor_of_all,
)
from livescale.shared.model.declaration.quantization import KEYS, read_quantization
from livescale.shared.model.declaration.rotation import Rotation, RotationReader, head_orders
from livescale.shared.model.declaration.tensors import Shapes, Source, model_parameters
from livescale.shared.model.packed.form import WEIGHT, packing_of, stored_parts

GENERATES = ("ForCausalLM", "LMHeadModel")
CLASSIFIES_IMAGES = "ForImageClassification"
LAYERS = "model.layers."
FULL, SLIDING = "full_attention", "sliding_attention"
LONGEST_HEAD = 4_096
MOST_LAYERS = 10_000
DEFAULT_WINDOW = 4_096  # of transformers


@dataclass(frozen=True)
class Architecture:
    """An architecture as transformers has it, in the class `class_name`; `serves` says what people run of it.

    `renamed` has the checkpoint's name by ours, each the part that follows `model.layers.N.` and precedes `.weight`;
    `*` stands for the number of an expert.
    `joined` has the parts whose rows lie one after the other in a tensor of the checkpoint, by its name. `layers` is
    what precedes the number of a layer in its names, and `{last}` stands for the last number. `unused` are the
    beginnings of the names of tensors that nothing needs, in which `{next}` is the number after the last.
    `fuses_experts`: whether a checkpoint has the matrices of all experts as one, `[expert, in, out]`, with gate and up
    in turn; `transposes`: the matrices of layers as `[in, out]`. `example` are the keys of config.json, besides the
    sizes, of a small model of this kind. `sizes` has config.json's names of sizes by those of Llama's, and says that
    there are no others. `reshaped` are the sources, by our names, of parameters that a checkpoint has in another shape.
    """

    class_name: str
    serves: str
    describe: Callable[[ConfigFile], ModelConfig]
    renamed: Mapping[str, str] = field(default_factory=dict)
    joined: Mapping[str, Sequence[str]] = field(default_factory=dict)
    layers: str = LAYERS
    unused: tuple[str, ...] = ()
    fuses_experts: bool = False
    transposes: bool = False
    sizes: Mapping[str, str] = field(default_factory=dict)
    example: Mapping[str, Any] = field(default_factory=dict)
    reshaped: Callable[[ModelConfig], Mapping[str, Source]] = lambda config: {}

    @property
    def generates(self) -> bool:
        """Whether its checkpoints may generate text; the others make vectors and scores only."""
        return self.class_name.endswith(GENERATES)

    @property
    def takes_images(self) -> bool:
        """Whether a prompt is an image, and no text."""
        return self.class_name.endswith(CLASSIFIES_IMAGES)

    def sources(self, config: ModelConfig) -> dict[str, Source]:
        """Where each parameter of the model lies in its checkpoint, by our name."""
        shapes, orders, last = _stored_parts(config), head_orders(config), config.num_hidden_layers - 1
        found = {name: self._source(name, shapes, orders.get(_module(name), ()), last) for name in shapes}
        return found | dict(self.reshaped(config))

    def unneeded(self, config: ModelConfig) -> tuple[str, ...]:
        """How the names of tensors begin that a checkpoint may have and that nothing needs."""
        return tuple(one.format(next=config.num_hidden_layers) for one in self.unused)

    def stacked(self, config: ModelConfig) -> dict[str, Stacked]:
        """Where a checkpoint that has the tensors of all experts as one has each of them, by the names of one that does
        not."""
        if self.fuses_experts:
            return {}
        sources = self.sources(config)
        return {sources[ours].name: where for ours, where in stacked_sources(config)}

    def _source(self, name: str, shapes: Shapes, order: tuple[int, ...], last: int) -> Source:
        place, part, kind = _split(name)
        theirs = place.replace(LAYERS, self.layers)
        rows = shapes[name][0]
        fused = fused_source(part) if self.fuses_experts else None
        if fused is not None:
            return Source(f"{theirs}{fused[0]}{'' if kind == 'weight' else '_bias'}", 0, rows, fused=fused[1])
        transposed = self.transposes and bool(place) and len(shapes[name]) == 2
        for whole, parts in self.joined.items():
            if part in parts:
                before = [shapes[f"{place}{one}.{kind}"][0] for one in parts[: parts.index(part)]]
                return Source(f"{theirs}{whole}.{kind}", sum(before), rows, order, transposed=transposed)
        stem = f"{theirs}{renamed_part(part, self.renamed).format(last=last)}"
        return Source(f"{stem}.{kind}", 0, rows, order, transposed=transposed)

    def stored_shapes(self, config: ModelConfig) -> Shapes:
        """The tensors that a checkpoint has, by its names."""
        shapes = _stored_parts(config)
        stored: Shapes = {}
        sources = {name: one for name, one in self.sources(config).items() if one.fused is None}
        for name, source in sources.items():
            stored[source.name] = source.stored_shape(shapes[name], stored.get(source.name))
        quantization = config.quantization
        for name, source in sources.items():
            packing = packing_of(quantization, tensor_of_all(name))
            if quantization is not None and packing is not None and source.name in stored:
                stored |= stored_parts(quantization, packing, source.name, stored.pop(source.name))
        return stored | fused_shapes(config) if self.fuses_experts else stored

    def quantized(self, config: ModelConfig, read: ConfigFile) -> ModelConfig:
        """The model with what its file says of quantized matrices. Raises CheckpointError."""
        quantized = [key for key in KEYS if read.mapping(key)]
        is_mxfp4 = bool(quantized) and read.mapping(quantized[0]).get("quant_method") == "mxfp4"
        if quantized and self.fuses_experts and not is_mxfp4:
            raise CheckpointError(f"{quantized[0]}: experts of {self.class_name} are served in mxfp4 and bfloat16 only")
        if quantized and (self.transposes or self.takes_images):
            raise CheckpointError(f"{quantized[0]}: not served of {self.class_name}; use the checkpoint in bfloat16")
        if is_mxfp4 and not self.fuses_experts:
            raise CheckpointError(f"{quantized[0]}: quant_method mxfp4 is known of gpt_oss alone; {REMEDY}")
        sources = self.sources(config)
        first = range(1)

        def module_of(name: str) -> str:
            return sources[each_name(name, first)[0]].name.removesuffix(WEIGHT)

        found = read_quantization(read, config, module_of)
        return replace(config, quantization=found)


def _stored_parts(config: ModelConfig) -> Shapes:
    """The shape of each tensor by our names, where those of an expert are tensors of their own."""
    experts = range(0) if config.experts is None else range(config.experts.count)
    parts: Shapes = {}
    for block in model_parameters(config).values():
        for one in block:
            names = each_name(one.name, experts)
            parts |= dict.fromkeys(names, one.shape if names == [one.name] else one.shape[1:])
    return parts


def _module(name: str) -> str:
    """The last part of a tensor's name but for its kind, such as q_proj."""
    return name.rpartition(".")[0].rpartition(".")[2]


def _split(name: str) -> tuple[str, str, str]:
    """A name as what precedes the part, the part, and what follows it."""
    stem, _, kind = name.rpartition(".")
    if not stem.startswith(LAYERS):
        return "", stem, kind
    place = ".".join(stem.split(".")[:3]) + "."
    return place, stem.removeprefix(place), kind


class Dense:
    """The keys that all dense decoders have in common, read from `config`.

    What differs among architectures is what transformers takes where a key is absent: `theta`, the share `partial` of a
    head that rotates, `tied`, `eps`, and `head_dim`, which else follows from the hidden size. Raises CheckpointError.
    """

    def __init__(
        self,
        config: ConfigFile,
        *,
        activations: Mapping[str, Activation] = {"silu": "silu"},
        partial: float | None = None,
        theta: float = 10_000.0,
        tied: bool = False,
        eps: float = 1e-6,
        head_dim: int | None = None,
    ) -> None:
        self.config = config
        self.vocab_size, self.hidden_size = config.size("vocab_size"), config.size("hidden_size")
        self.intermediate_size = config.size("intermediate_size")
        self.layers, self.heads = config.size("num_hidden_layers"), config.size("num_attention_heads")
        self.key_heads = config.size("num_key_value_heads", self.heads)
        self.positions = config.size("max_position_embeddings")
        self.head_dim = config.whole("head_dim", head_dim or self.hidden_size // self.heads)
        self._check()
        self.tied, self.eps = config.flag("tie_word_embeddings", tied), config.number("rms_norm_eps", eps)
        self.activation = self._activation(activations)
        self.rotations = RotationReader(config, self.head_dim, self.positions, theta, partial)

    def _check(self) -> None:
        if self.layers > MOST_LAYERS:
            raise CheckpointError(f"num_hidden_layers is {self.layers}, must be at most {MOST_LAYERS}")
        if self.heads % self.key_heads:
            raise CheckpointError(
                f"num_attention_heads {self.heads} is no multiple of num_key_value_heads {self.key_heads}"
            )
        if not 2 <= self.head_dim <= LONGEST_HEAD or self.head_dim % 2:
            raise CheckpointError(
                f"head_dim {self.head_dim} must be even, positive and at most {LONGEST_HEAD}, as RoPE rotates pairs"
            )

    def _activation(self, activations: Mapping[str, Activation]) -> Activation:
        default = next(iter(activations))
        named = [self.config.text(key, default) for key in ("hidden_act", "hidden_activation")]
        unknown = [one for one in named if one not in activations]
        if unknown:
            raise CheckpointError(f"hidden_act {unknown[0][:80]!r} is not known of this architecture")
        return activations[named[0]]

    def window(self, default: int = 0) -> int:
        """How many positions a row of a layer with a window sees; 0 is all."""
        key = "sliding_window"
        window = self.config.whole(key, int(self.config.unless_null(key, default)))
        if window < 0:
            raise CheckpointError(f"{key} is {window}, must be positive")
        return window if window < self.positions else 0

    def layer_types(self, default: Callable[[int], str]) -> list[str]:
        """The type of each layer; `default` has that of layer i where the file says none."""
        types = self.config.texts("layer_types") or [default(layer) for layer in range(self.layers)]
        unknown = [one for one in types if one not in (FULL, SLIDING)]
        if unknown or len(types) != self.layers:
            problem = f"has {unknown[0][:80]!r}" if unknown else f"has {len(types)} for {self.layers} layers"
            raise CheckpointError(f"layer_types {problem}; supported are {FULL} and {SLIDING}, one for each layer")
        return types

    def windowed(self, kind: LayerKind) -> LayerKind:
        """Layers of this kind whose rows see the window that the file says."""
        return replace(kind, window=self.window(DEFAULT_WINDOW))

    def upper_windows(self) -> list[int]:
        """The window of each layer as in Qwen2 and Qwen3: the upper ones have it, where it is switched on."""
        is_on, first = self.config.flag("use_sliding_window"), self.config.whole("max_window_layers", 28)
        window = self.window(DEFAULT_WINDOW) * is_on
        types = self.layer_types(lambda layer: SLIDING if window and layer >= first else FULL)
        return [window if one == SLIDING else 0 for one in types]

    def turning(self, kind: LayerKind, rotation: Rotation) -> LayerKind:
        """Return this kind of layers with a rotation of its own."""
        return self._turning(replace(kind, frequencies=rotation.all_frequencies(self.head_dim)), rotation)

    def still(self, kind: LayerKind) -> LayerKind:
        """Layers of this kind that do not rotate at all."""
        return replace(kind, frequencies=(0.0,) * (self.head_dim // 2))

    def _turning(self, kind: LayerKind, rotation: Rotation) -> LayerKind:
        if rotation.score_factor == 1.0:
            return kind
        return replace(kind, attention_scale=(kind.attention_scale or self.head_dim**-0.5) * rotation.score_factor)

    def model(
        self, *kinds: LayerKind, rotation: Rotation | None = None, **fields: bool | float | Experts | Latent | None
    ) -> ModelConfig:
        """The model whose layers are of these kinds: one for all, or one for each in order. They rotate as `rotation`
        says, or as the file does, unless they do so in their own way. `fields` are what only this architecture has."""
        rotation = rotation or self.rotations.read()
        own = {name: getattr(rotation, name) for name in ("frequencies", "short_frequencies", "turning_scale")}
        each = [
            kind if kind.frequencies is not None else self._turning(replace(kind, **own), rotation) for kind in kinds
        ]
        distinct = list(dict.fromkeys(each))
        common = ModelConfig(
            family=self.config.text("model_type"),
            vocab_size=self.vocab_size,
            hidden_size=self.hidden_size,
            intermediate_size=self.intermediate_size,
            num_hidden_layers=self.layers,
            num_attention_heads=self.heads,
            num_key_value_heads=self.key_heads,
            head_dim=self.head_dim,
            rms_norm_eps=self.eps,
            rope_theta=rotation.theta,
            max_position_embeddings=self.positions,
            rope_scaling=rotation.scaling,
            tie_word_embeddings=self.tied,
            rotary_dim=rotation.rotary_dim,
            short_positions=rotation.short_positions,
        )
        return replace(
            common,
            kinds=[] if distinct == [LayerKind()] else distinct,
            layer_kinds=[distinct.index(kind) for kind in each] if len(distinct) > 1 else [],
            **fields,
        )
