import pytest

from livescale.services.worker.lifecycle import MOVES, Lifecycle, State
from livescale.shared.bus.contract import Refusal
from livescale.shared.messages.parameters import Block, Manifest, ModelConfig
from livescale.shared.messages.transfers import Drain, Load, Serve

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
    assert lifecycle.state is State.SPARE
    assert lifecycle.assignment is None
    lifecycle.load(LOAD)


def test_a_worker_does_not_serve_before_every_block_is_ready() -> None:
    lifecycle = Lifecycle()
    lifecycle.load(LOAD)
    lifecycle.block_ready("plan-1", 0)
    with pytest.raises(Refusal, match="1 blocks are ready, not all"):
        lifecycle.serve(SERVE)
    assert lifecycle.state is State.LOADING


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
    assert lifecycle.state is State.DRAINING


def test_who_has_drained_takes_the_command_again_whose_answer_got_lost() -> None:
    lifecycle = loaded()
    lifecycle.serve(SERVE)
    lifecycle.drain(DRAIN)
    lifecycle.release()
    assert not lifecycle.drain(DRAIN)
    assert lifecycle.state is State.SPARE
    lifecycle.load(LOAD)
    with pytest.raises(Refusal, match="cannot go from loading to draining"):
        lifecycle.drain(DRAIN)


def test_an_abort_frees_only_the_plan_that_is_loading() -> None:
    lifecycle = Lifecycle()
    lifecycle.load(LOAD)
    assert not lifecycle.aborts("plan-0")
    assert lifecycle.aborts("plan-1")
    lifecycle.release()
    assert not lifecycle.block_ready("plan-1", 1), "a late block of an ended plan does not count"


def test_a_serving_worker_is_never_dropped_without_draining() -> None:
    assert MOVES.table[State.SERVING] == {State.DRAINING}
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
            assert lifecycle.state is State.SPARE


def test_a_worker_that_is_whole_need_not_go_live() -> None:
    assert not loaded().may_go_live(loaded().ready)
