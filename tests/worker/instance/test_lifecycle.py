"""A worker's states, and LOADs that no worker can carry out: these are refused by the name of the field."""

from typing import Any

import pytest
from msgspec.structs import replace

from livescale.services.host.checkpoint import open_checkpoint
from livescale.services.worker.instance.lifecycle import MOVES, Lifecycle, WorkerState, check_load
from livescale.shared.bus.contract import Refusal
from livescale.shared.messages.parameters import Block, Manifest, ModelConfig
from livescale.shared.messages.transfers import Drain, Load, Serve
from tests.checkpoints import tiny_checkpoint

CONFIG = ModelConfig(
    family="llama",
    vocab_size=8,
    hidden_size=8,
    intermediate_size=8,
    num_hidden_layers=1,
    num_attention_heads=1,
    num_key_value_heads=1,
    head_dim=8,
    rms_norm_eps=1e-5,
    rope_theta=1e4,
    max_position_embeddings=64,
)
MANIFEST = Manifest(
    version="v",
    config=CONFIG,
    dtype="float32",
    blocks=[Block(index=i, name=f"b{i}", size_bytes=4, checksum=0, tensors=[]) for i in range(3)],
)
LOAD = Load(
    plan_id="plan-1",
    model="m",
    instance="m-1",
    role="colocated",
    rank=0,
    manifest=MANIFEST,
    inflows=[],
    chunk_bytes=1,
    max_model_len=64,
    epoch=1,
)
SERVE = Serve(plan_id="plan-1", instance="m-1", epoch=1)
DRAIN = Drain(instance="m-1", epoch=1)


def loaded() -> Lifecycle:
    lifecycle = Lifecycle()
    lifecycle.load(LOAD)
    for index in range(3):
        assert lifecycle.block_ready("plan-1", index)
    return lifecycle


def test_a_worker_goes_round_from_spare_to_spare() -> None:
    lifecycle = loaded()
    lifecycle.serve(SERVE)
    assert lifecycle.accepts_requests("m")
    lifecycle.drain(DRAIN)
    assert not lifecycle.accepts_requests("m")
    lifecycle.release()
    assert lifecycle.state is WorkerState.SPARE
    assert lifecycle.assignment is None
    lifecycle.load(LOAD)


def test_a_worker_does_not_serve_before_every_block_is_ready() -> None:
    lifecycle = Lifecycle()
    lifecycle.load(LOAD)
    lifecycle.block_ready("plan-1", 0)
    with pytest.raises(Refusal, match="1 blocks are ready, not all"):
        lifecycle.serve(SERVE)
    assert lifecycle.state is WorkerState.LOADING


def test_a_busy_worker_refuses_another_load() -> None:
    with pytest.raises(Refusal, match="not spare"):
        loaded().load(LOAD)


def test_commands_for_another_instance_are_refused_by_name() -> None:
    lifecycle = loaded()
    with pytest.raises(Refusal, match="holds m-1, not m-2"):
        lifecycle.serve(Serve(plan_id="plan-2", instance="m-2", epoch=1))
    with pytest.raises(Refusal, match="holds no instance, not m-1"):
        Lifecycle().drain(DRAIN)


def test_commands_told_twice_change_nothing() -> None:
    lifecycle = loaded()
    lifecycle.serve(SERVE)
    lifecycle.serve(SERVE)
    assert lifecycle.drain(DRAIN)
    assert not lifecycle.drain(DRAIN)
    assert lifecycle.state is WorkerState.DRAINING


def test_a_worker_that_has_drained_takes_the_command_again_whose_answer_got_lost() -> None:
    lifecycle = loaded()
    lifecycle.serve(SERVE)
    lifecycle.drain(DRAIN)
    lifecycle.release()
    assert not lifecycle.drain(DRAIN)
    assert lifecycle.state is WorkerState.SPARE
    lifecycle.load(LOAD)
    with pytest.raises(Refusal, match="cannot go from loading to draining"):
        lifecycle.drain(DRAIN)


def test_a_worker_that_drains_serves_again_only_if_it_is_recalled() -> None:
    lifecycle = loaded()
    lifecycle.serve(SERVE)
    lifecycle.drain(DRAIN)
    with pytest.raises(Refusal, match="it is draining"):
        lifecycle.serve(SERVE)
    lifecycle.serve(replace(SERVE, recall=True))
    assert lifecycle.state is WorkerState.SERVING
    assert lifecycle.drain(DRAIN)
    lifecycle.release()
    with pytest.raises(Refusal, match="holds no instance"):
        lifecycle.serve(replace(SERVE, recall=True))


def test_a_command_to_drain_that_comes_again_once_its_scale_recalled_the_instance_changes_nothing() -> None:
    lifecycle, drain = loaded(), replace(DRAIN, plan_id="scale-1")
    lifecycle.serve(SERVE)
    assert lifecycle.drain(drain)
    lifecycle.serve(replace(SERVE, plan_id="scale-1", recall=True))
    assert not lifecycle.drain(drain)
    assert lifecycle.state is WorkerState.SERVING
    assert lifecycle.drain(replace(drain, plan_id="scale-2"))


def test_an_abort_frees_only_the_plan_that_is_loading() -> None:
    lifecycle = Lifecycle()
    lifecycle.load(LOAD)
    assert not lifecycle.aborts("plan-0")
    assert lifecycle.aborts("plan-1")
    lifecycle.release()
    assert not lifecycle.block_ready("plan-1", 1), "a late block of an ended plan does not count"


def test_a_serving_worker_is_never_dropped_without_draining() -> None:
    assert MOVES.table[WorkerState.SERVING] == {WorkerState.DRAINING}
    lifecycle = loaded()
    lifecycle.serve(SERVE)
    assert not lifecycle.aborts("plan-1")
    with pytest.raises(Refusal, match="cannot go from serving to spare"):
        lifecycle.release()


def test_a_worker_may_go_live_with_its_first_layer_and_is_spare_or_serves_from_there() -> None:
    for ends_serving in (True, False):
        lifecycle = Lifecycle()
        lifecycle.load(LOAD)
        lifecycle.block_ready("plan-1", 1)
        assert not lifecycle.may_go_live(lifecycle.ready)
        lifecycle.block_ready("plan-1", 0)
        assert lifecycle.may_go_live(lifecycle.ready)
        lifecycle.go_live()
        lifecycle.check_invariants()
        assert (lifecycle.accepts_requests("m"), lifecycle.aborts("plan-1"), lifecycle.goes_on(LOAD)) == (True,) * 3
        with pytest.raises(Refusal, match="2 blocks are ready"):
            lifecycle.serve(SERVE)
        if ends_serving:
            lifecycle.block_ready("plan-1", 2)
            lifecycle.serve(SERVE)
            assert not lifecycle.aborts("plan-1")
        else:
            lifecycle.release()
            assert lifecycle.state is WorkerState.SPARE


def test_a_worker_that_is_whole_need_not_go_live() -> None:
    assert not loaded().may_go_live(loaded().ready)


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
    """The command for one rank of a model that is cut for two."""
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
