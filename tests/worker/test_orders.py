"""Loads that no worker could carry out are refused by the name of the field."""

from typing import Any

import pytest
from msgspec.structs import replace

from services.host.checkpoint import open_checkpoint
from services.worker.orders import check_load
from shared.bus.contract import Refusal
from shared.messages.parameters import Manifest
from shared.messages.transfers import Load
from tests.made import tiny


@pytest.fixture(scope="module")
def manifest() -> Manifest:
    checkpoint = open_checkpoint(tiny("llama"), "float32")
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
