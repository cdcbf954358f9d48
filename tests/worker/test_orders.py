"""Loads that no worker could carry out are refused by the name of the field."""

from typing import Any

import pytest
from msgspec.structs import replace

from livescale.services.host.checkpoint import open_checkpoint
from livescale.services.worker.lifecycle import check_load
from livescale.shared.bus.contract import Refusal
from livescale.shared.messages.parameters import Manifest
from livescale.shared.messages.transfers import Load
from tests.checkpoints import tiny_checkpoint


@pytest.fixture(scope="module")
def manifest() -> Manifest:
    checkpoint = open_checkpoint(tiny_checkpoint("llama"), "float32")
    return checkpoint.manifest([0] * len(checkpoint.layouts))


def load(manifest: Manifest, **more: Any) -> Load:
    fields: dict[str, Any] = {"max_model_len": 64, "epoch": 1, "chunk_bytes": 65_536, **more}
    return Load(
        plan_id="p",
        model="m",
        instance="i",
        role="colocated",
        rank=0,
        manifest=manifest,
        inflows=[],
        **fields,
    )


def test_a_checkpoint_s_own_manifest_is_taken(manifest: Manifest) -> None:
    check_load(load(manifest))


def test_blocks_that_do_not_follow_from_the_configuration_are_refused(manifest: Manifest) -> None:
    first, *rest = manifest.blocks
    spoiled = [
        [],
        rest,
        [*rest, first],
        [replace(first, size_bytes=first.size_bytes * 2), *rest],
        [replace(first, tensors=[]), *rest],
        [replace(first, tensors=[replace(first.tensors[0], offset=2**40)]), *rest],
    ]
    for blocks in spoiled:
        with pytest.raises(Refusal, match=r"400: manifest\.blocks"):
            check_load(load(replace(manifest, blocks=blocks)))


def test_a_context_longer_than_the_model_s_is_refused(manifest: Manifest) -> None:
    with pytest.raises(Refusal, match=r"400: max_model_len: 1000000 is more than the model's own"):
        check_load(load(manifest, max_model_len=1_000_000))


def of_rank(rank: int) -> Load:
    """Of a model that is cut for two."""
    checkpoint = open_checkpoint(tiny_checkpoint("qwen2"), "float32", 2)
    whole = checkpoint.manifest([0] * len(checkpoint.layouts))
    return replace(load(whole.of_shard(rank)), rank=rank, ranks=["a", "b"])


def test_each_rank_takes_its_own_shard() -> None:
    for rank in (0, 1):
        check_load(of_rank(rank))


@pytest.mark.parametrize(
    ("spoilt", "said"),
    [
        ({"rank": 1}, "rank: 1 of 2 cannot have shard 0"),
        ({"rank": 2}, "rank: 2 of 2 cannot have shard 0"),
        ({"ranks": []}, "ranks: 1 of them, the manifest is for 2"),
        ({"ranks": ["a", "b", "c"]}, "ranks: 3 of them, the manifest is for 2"),
    ],
)
def test_a_load_whose_ranks_and_shards_do_not_fit_is_refused(spoilt: dict[str, Any], said: str) -> None:
    with pytest.raises(Refusal, match=f"400: {said}"):
        check_load(replace(of_rank(0), **spoilt))


def test_a_manifest_for_ranks_that_the_model_cannot_have_is_refused() -> None:
    good = of_rank(0)
    with pytest.raises(Refusal, match=r"400: manifest\.shards: tensor_parallel_size is 4 and does not divide"):
        check_load(replace(good, manifest=replace(good.manifest, shards=4)))
    with pytest.raises(Refusal, match="400: rank: 0 of 2 cannot have shard 1"):
        check_load(replace(good, manifest=of_rank(1).manifest))
