"""Small random models, and how many instances each may have."""

from collections.abc import Sequence
from random import Random

from msgspec.structs import replace

from livescale.load.simulate.seeds.history import SeedFault
from livescale.shared.messages.model_spec import ModelSpec, ScalingBounds
from livescale.shared.messages.parameters import ModelConfig

BOUNDS = ScalingBounds(decode_lo=0.1, decode_hi=0.25)  # a few requests at an instance ask for another
VOCABULARY, HIDDEN_SIZE = 509, 64


def random_models(chance: Random, workers: int) -> list[ModelSpec]:
    """One model or two. There are workers enough for the fewest instances of each, and one more."""
    specs: list[ModelSpec] = []
    for name in ("m", "n")[: chance.choice((1, 1, 2))]:
        ranks = 2 if workers >= 4 and chance.random() < 0.25 else 1
        fewest = chance.choice((0, 1, 1)) if name == "n" else 1
        specs.append(
            ModelSpec(
                name=name,
                path=f"/models/{name}",
                min_instances=fewest,
                max_instances=chance.randint(min(2, workers // ranks), workers // ranks),
                bounds=BOUNDS,
                downscale_delay_s=chance.uniform(0.5, 3.0),
                downscale_to_zero_delay_s=chance.uniform(1.0, 3.0),
                tensor_parallel_size=ranks,
            )
        )
    return specs


def with_more_ranks(chance: Random, specs: Sequence[ModelSpec], workers: int) -> list[ModelSpec]:
    """The same models, of which some that are cut for two ranks are cut for four, where there are workers enough."""
    made = list(specs)
    for place, spec in enumerate(specs):
        others = workers_of_others(made, spec)
        if spec.tensor_parallel_size == 2 and workers > 4 + others and chance.random() < 0.5:
            most = min(spec.max_instances, workers // 4)
            made[place] = replace(spec, tensor_parallel_size=4, max_instances=most)
    return made


def workers_of_others(specs: Sequence[ModelSpec], spec: ModelSpec) -> int:
    """How many workers the fewest instances of all other models take, and of each at least one instance: one that has
    none gets it once it is asked for."""
    return sum(max(one.min_instances, 1) * one.tensor_parallel_size for one in specs if one.name != spec.name)


def random_config(chance: Random) -> ModelConfig:
    return ModelConfig(
        family="llama",
        vocab_size=VOCABULARY,
        hidden_size=HIDDEN_SIZE,
        intermediate_size=256,
        num_hidden_layers=chance.randint(2, 8),
        num_attention_heads=4,
        num_key_value_heads=4,
        head_dim=16,
        rms_norm_eps=1e-5,
        rope_theta=1e4,
        max_position_embeddings=2_048,
    )


def random_updates(chance: Random, specs: Sequence[ModelSpec], latest: float) -> tuple[list[SeedFault], set[str]]:
    """Up to two times at which a model gets another checkpoint, and the paths of those that are new. The second time it
    gets back the one that it had."""
    spec = chance.choice(specs)
    paths = [f"{spec.path}.2", spec.path][: chance.choice((0, 0, 1, 2))]
    times = sorted(chance.uniform(0.0, latest) for _ in paths)
    faults = [SeedFault(at, "update", spec.name, other=path) for at, path in zip(times, paths, strict=True)]
    return faults, set(paths[:1])


def random_removal(chance: Random, specs: Sequence[ModelSpec], latest: float) -> list[SeedFault]:
    """In every other system a time at which a model is removed, and for how long it is away at least."""
    at, seconds = chance.uniform(0.0, latest), chance.choice((0.0, 0.2, 2.0, 8.0))
    return [SeedFault(at, "remove", chance.choice(specs).name, seconds)] if chance.random() < 0.5 else []


def random_limits(chance: Random, specs: Sequence[ModelSpec], workers: int, latest: float) -> list[SeedFault]:
    """Up to three times at which a model may have more instances than before, or fewer."""
    limits: list[SeedFault] = []
    for _ in range(chance.choice((0, 0, 1, 3))):
        spec, at = chance.choice(specs), chance.uniform(0.0, latest)
        limits.append(SeedFault(at, "limit", spec.name, amount=chance.randint(1, workers // spec.tensor_parallel_size)))
    return limits
