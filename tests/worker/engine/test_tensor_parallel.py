"""Several ranks, each a thread with its shard of a model, in a process group of gloo's: how they meet, and what is left
of them when one is lost."""

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import TypeVar

import pytest
import torch
from torch._C._distributed_c10d import HashStore

from livescale.services.worker.engine import tensor_parallel
from livescale.services.worker.engine.contract import RankLost
from livescale.services.worker.engine.engine import TorchEngine
from livescale.services.worker.engine.kernels.variants import Kernels
from livescale.services.worker.engine.tensor_parallel import ProcessGroup, added, least, open_store, reach_store
from livescale.services.worker.scheduling.batch import Chosen
from livescale.services.worker.scheduling.scheduler import Scheduler
from livescale.shared.messages.parameters import DType
from livescale.shared.messages.requests import PromptLogprobs, Sampling, Submit
from tests.worker.engine.configs import CUT_CONFIGS
from tests.worker.engine.greedy import are_greedy
from tests.worker.engine.models import Checkpointed, checkpointed, reference_logits
from tests.worker.requests import limits, random_prompt, submit
from tests.worker.serving import Served, serve, serve_each, strays

T = TypeVar("T")


def on_ranks(name: str, dtype: DType, shards: int, work: Callable[[TorchEngine], T]) -> list[T]:
    """What comes of `work` at each rank of an instance: all do the same."""
    return in_ranks(checkpointed(name, dtype, shards), shards, work)


def in_ranks(
    cut: Checkpointed, shards: int, work: Callable[[TorchEngine], T], kernels: Kernels | None = None
) -> list[T]:
    """The same of a model that is cut for so many ranks, with these kernels or torch's."""
    store = HashStore()

    def run(shard: int) -> T:
        return work(cut.rank(shard, ProcessGroup(store, shard, shards, "127.0.0.1"), kernels))

    with ThreadPoolExecutor(shards, initializer=torch.set_num_threads, initargs=(1,)) as threads:
        return list(threads.map(run, range(shards)))


def requests() -> list[Submit]:
    lengths = (1, 3, 128, 129, 300)
    greedy, seeded = Sampling(temperature=0.0), Sampling(temperature=0.9, seed=3)
    return [
        submit(str(length), random_prompt(length, length), max_tokens=12, sampling=seeded if length == 3 else greedy)
        for length in lengths
    ]


def serve_all(engine: TorchEngine) -> Served:
    return serve(engine, [(0, request) for request in requests()])


@pytest.mark.parametrize("shards", [2, 4])
@pytest.mark.parametrize("name", CUT_CONFIGS)
def test_several_ranks_are_right(name: str, shards: int) -> None:
    served = on_ranks(name, "float32", shards, serve_all)[0]
    for request in requests():
        tokens = served.tokens[request.request_id]
        logits = reference_logits(name, request.prompt, tokens)
        assert torch.allclose(served.rows(request.request_id), logits, atol=1e-3, rtol=1e-3), request.request_id
        if request.sampling.temperature == 0.0:
            assert are_greedy(logits, tokens), request.request_id


@pytest.mark.parametrize(("name", "shards"), [("olmo2-small", 2), ("olmo2-small", 6), ("glm4-small", 2)])
def test_ranks_share_norms_of_whole_rows_and_keep_pairs_together(name: str, shards: int) -> None:
    prompt = random_prompt(129, 129)
    served = on_ranks(name, "float32", shards, lambda engine: serve(engine, [(0, submit("a", prompt, max_tokens=4))]))
    theirs = reference_logits(name, prompt, served[0].tokens["a"])
    assert (served[0].rows("a") - theirs).abs().max() <= 1e-4 * theirs.std()


def test_the_first_rank_tells_how_likely_the_tokens_of_a_prompt_are() -> None:
    name, prompt = "qwen2-cut-tied", random_prompt(4, 100)

    def told(engine: TorchEngine) -> Chosen:
        scheduler = Scheduler(limits(kv_blocks=engine.store.blocks))
        scheduler.add(submit("a", prompt, max_tokens=1, prompt_logprobs=PromptLogprobs(top=1)))
        batch = scheduler.next_batch()
        assert batch is not None
        return engine.step(batch)

    first, second = on_ranks(name, "float32", 2, told)
    expected = reference_logits(name, prompt[:1], prompt[1:]).double().log_softmax(1)
    found = torch.tensor([one.chosen for one in first.prompts[0]], dtype=torch.float64)
    assert torch.allclose(found, expected.gather(1, torch.tensor(prompt[1:])[:, None])[:, 0], atol=1e-3)
    assert second == Chosen([])


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_every_rank_of_every_instance_of_a_degree_has_the_same_bits(dtype: DType) -> None:
    first, second = (on_ranks("qwen2-cut-tied", dtype, 4, serve_all) for _ in range(2))
    for other in (*first[1:], *second):
        assert other.tokens == first[0].tokens
        for key in first[0].logits:
            assert torch.equal(other.rows(key), first[0].rows(key)), key


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("name", CUT_CONFIGS)
def test_batch_composition_changes_no_bit_of_several_ranks(name: str, dtype: DType) -> None:
    def compare(engine: TorchEngine) -> None:
        alone = serve_each(engine, requests())
        staggered = [(3 * order, request) for order, request in enumerate(reversed(requests()))]
        together = serve(engine, staggered, max_num_seqs=3, max_num_batched_tokens=144)
        for key, served in alone.items():
            assert together.tokens[key] == served.tokens[key]
            assert torch.equal(together.rows(key), served.rows(key)), key

    on_ranks(name, dtype, 2, compare)


def test_bfloat16_on_several_ranks_strays_no_further_than_on_one() -> None:
    name = "llama-cut-untied"
    served, alone = on_ranks(name, "bfloat16", 4, serve_all)[0], serve_all(checkpointed(name, "bfloat16").engine())
    prompts = {request.request_id: request.prompt for request in requests()}
    several, one = (strays(name, prompts, made)[0] for made in (served, alone))
    assert several <= 1.2 * one


HERE = "127.0.0.1"


def test_ranks_that_meet_gather_in_their_order() -> None:
    store, port = open_store(HERE)

    def run(rank: int) -> list[torch.Tensor]:
        own = store if rank == 0 else reach_store(HERE, port)
        return ProcessGroup(own, rank, 3, HERE).gather(torch.tensor([rank, 10 * rank]))

    with ThreadPoolExecutor(3) as threads:
        for gathered in threads.map(run, range(3)):
            assert torch.stack(gathered).tolist() == [[0, 0], [1, 10], [2, 20]]


def test_a_rank_that_waits_for_another_that_does_not_come_gives_up(monkeypatch: pytest.MonkeyPatch) -> None:
    store, _ = open_store(HERE)
    monkeypatch.setattr(tensor_parallel, "MEETING", timedelta(seconds=0.2))
    with pytest.raises(RankLost, match="the 2 ranks did not all connect: wait timeout"):
        ProcessGroup(store, 0, 2, HERE)


def test_a_leader_that_is_not_there_is_no_reason_to_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    store, port = open_store(HERE)
    del store
    monkeypatch.setattr(tensor_parallel, "MEETING", timedelta(seconds=0.2))
    with pytest.raises(RankLost, match="cannot reach the rank that leads"):
        reach_store(HERE, port)


def test_a_machine_that_is_too_busy_to_meet_itself_gives_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tensor_parallel, "MEETING", timedelta())
    with pytest.raises(RankLost, match=r"cannot reach the ranks' own store: .*timed out"):
        open_store(HERE)


def test_an_address_that_is_not_ours_is_named() -> None:
    with pytest.raises(RankLost, match=r"cannot listen on 192\.0\.2\.1"):
        open_store("192.0.2.1")


@pytest.mark.parametrize("leaves", [True, False], ids=["dies", "says nothing"])
def test_a_rank_that_is_lost_ends_the_others_step(leaves: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    store, port = open_store(HERE)
    others, done = [], threading.Event()

    def other() -> None:
        others.append(ProcessGroup(reach_store(HERE, port), 1, 2, HERE))
        if leaves:
            others.clear()
        done.wait(60)

    thread = threading.Thread(target=other)
    thread.start()
    try:
        group = ProcessGroup(store, 0, 2, HERE)
        monkeypatch.setattr(tensor_parallel, "COLLECTIVE", timedelta(seconds=0.2))
        with pytest.raises(RankLost, match="a rank was lost: "):
            group.gather(torch.zeros(1))
    finally:
        done.set()
        thread.join()


class OnDevice:
    """Two ranks whose tensors lie elsewhere than a CPU's; the other has seven."""

    size, device = 2, "meta"

    def gather(self, part: torch.Tensor) -> list[torch.Tensor]:
        assert part.device.type == self.device
        return [torch.tensor(9), torch.tensor(7)]

    def share(self, tensor: torch.Tensor) -> torch.Tensor:
        raise NotImplementedError  # nothing is given to others


def test_what_ranks_count_goes_from_device_to_device() -> None:
    assert least(9, OnDevice()) == 7


def test_parts_are_added_in_their_order_and_rounded_once() -> None:
    parts = [torch.tensor([one], dtype=torch.bfloat16) for one in (256.0, 1.0, 1.0, -256.0)]
    assert added(parts).tolist() == [2.0]
    assert added(parts[:2]).dtype == torch.bfloat16
