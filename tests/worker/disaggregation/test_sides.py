"""Requests that are prefilled at one worker and decoded at another have the tokens that one alone would make."""

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise

import pytest
from msgspec.structs import replace as replace_struct

from livescale.services.worker.disaggregation import decode, laying, outgoing, pieces, prefill
from livescale.services.worker.disaggregation.decode import OFFER_SECONDS
from livescale.services.worker.disaggregation.incoming import IncomingKv
from livescale.services.worker.disaggregation.outgoing import KvTransfer, OutgoingKv
from livescale.services.worker.disaggregation.pieces import SLOW_LINK, KvRegion
from livescale.services.worker.disaggregation.sending import KvSender
from livescale.services.worker.scheduling.batch import Batch, Chosen, KvCopy, KvPiece
from livescale.shared.messages.requests import PromptLogprobs
from tests.worker.disaggregation.pairs import ask, counted, failed, slow_link, taken, with_pair
from tests.worker.live.engines import BFLOAT16, FLOAT32, MODELLED, EngineKind
from tests.worker.live.pool import WorkerPool
from tests.worker.requests import penalised, random_prompt, submit


@pytest.mark.parametrize("kind", [MODELLED, FLOAT32, BFLOAT16], ids=["modelled", "float32", "bfloat16"])
def test_requests_are_decoded_where_they_were_not_prefilled_and_have_the_same_tokens(kind: EngineKind) -> None:
    async def act(pool: WorkerPool) -> None:
        await ask(pool, 3)
        await pool.until(lambda: taken(pool) == 3)
        await pool.until(lambda: len(pool.client.moves) == 3)
        assert pool.client.places == dict.fromkeys(("r0", "r1", "r2"), "d")
        assert all(1 <= len(wish.tokens) < 12 for wish in pool.client.wishes)
        await pool.until(lambda: all(wish.is_over for wish in pool.client.wishes))
        assert counted(pool, "p", "transfer_bytes_total") > 0
        assert [move.previous for move in pool.client.moves] == ["p"] * 3

    with_pair(act, kind=kind)


@pytest.mark.parametrize("kind", [MODELLED, BFLOAT16], ids=["modelled", "bfloat16"])
def test_what_is_told_of_tokens_is_the_same_where_they_are_decoded_elsewhere(kind: EngineKind) -> None:
    asked = submit("own", random_prompt(3, 200), max_tokens=12, sampling=penalised(3))
    asked = replace_struct(asked, prompt_logprobs=PromptLogprobs(top=1))

    async def act(pool: WorkerPool) -> None:
        await pool.client.submit(asked, "p")
        await pool.until(lambda: pool.client.wishes[0].is_over)
        await pool.client.submit(replace_struct(asked, request_id="given"), "p", decode="d")
        await pool.until(lambda: taken(pool) == 1 and pool.client.wishes[1].is_over)
        own, given = pool.client.wishes
        assert (len(own.logprobs), len(own.prompt_logprobs)) == (12, 199)
        assert (given.logprobs, given.prompt_logprobs) == (own.logprobs, own.prompt_logprobs)

    with_pair(act, kind=kind)


async def first_token(pool: WorkerPool) -> float:
    """Wait for the first token, and return how many bytes of KV had left by then."""
    await pool.until(lambda: all(wish.tokens for wish in pool.client.wishes))
    return counted(pool, "p", "transfer_bytes_total")


def test_kv_leaves_while_a_long_prompt_is_computed_or_once_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pieces, "LEAST_PIECE_BYTES", 1)  # or all layers would be one piece

    async def by_layer(pool: WorkerPool) -> None:
        for number in range(3):
            await pool.client.submit(submit(f"own{number}", random_prompt(number, 400), max_tokens=1), "p")
        await ask(pool, length=400, first=3)  # nothing of it is in the prefix cache, which is copied between steps
        await pool.until(lambda: counted(pool, "p", "transfer_bytes_total") > 0)
        assert not pool.client.wishes[-1].tokens

    async def by_request(pool: WorkerPool) -> None:
        pool.faults.message_seconds = 0.1
        await ask(pool, length=400)
        assert await first_token(pool) == 0
        await pool.until(lambda: taken(pool) == 1)

    with_pair(by_layer)
    with_pair(by_request, kind=replace(MODELLED, kv_transfer="by-request"))


def test_kv_leaves_with_a_step_that_computes_more_of_it_than_may_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prefill, "MOST_STAGED_BYTES", 1)
    left, step = list[tuple[range, ...]](), KvTransfer.step

    def stepped(transfer: KvTransfer, start: int, stop: int, link_pace: float, *, leaves: bool) -> tuple[range, ...]:
        left.append(step(transfer, start, stop, link_pace, leaves=leaves))
        return left[-1]

    async def act(pool: WorkerPool) -> None:
        await ask(pool)
        await pool.until(lambda: taken(pool) == 1)

    monkeypatch.setattr(KvTransfer, "step", stepped)
    with_pair(act)
    assert left[0]


def test_a_request_whose_kv_has_come_misses_no_step(monkeypatch: pytest.MonkeyPatch) -> None:
    async def act(pool: WorkerPool) -> None:
        runner, engine, begun = pool.members["d"].runner, asyncio.Lock(), list[set[str] | None]()
        step, lay_down = runner.step, runner.lay_down

        async def one_step(batch: Batch) -> Chosen:
            async with engine:
                begun.append({chunk.request_id for chunk in batch.chunks})
                return await step(batch)

        async def one_write(copies: Sequence[KvCopy], pieces: Sequence[KvPiece]) -> None:
            async with engine:
                begun.append(None)
                await lay_down(copies, pieces)

        monkeypatch.setattr(runner, "step", one_step)
        monkeypatch.setattr(runner, "lay_down", one_write)
        await pool.client.submit(submit("here", random_prompt(9, 20), max_tokens=150), "d")
        await ask(pool, 3, length=200)
        await pool.until(lambda: all(wish.is_over for wish in pool.client.wishes))
        assert taken(pool) == 3
        for name in ("r0", "r1", "r2"):
            first = next(number for number, ids in enumerate(begun) if ids is not None and name in ids)
            written = max(number for number in range(first) if begun[number] is None)
            assert not any(begun[written + 1 : first]), "a step ran although the request's KV was there"

    with_pair(act, kind=FLOAT32)


def test_between_two_steps_kv_is_laid_down_once_for_all_requests(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(laying, "FIRST_LAID_BYTES", 1)
    monkeypatch.setattr(laying, "LEAST_LAID_BYTES", 1)
    monkeypatch.setattr(laying, "LAID_SHARE", 1e-12)  # a piece
    monkeypatch.setattr(pieces, "MOST_PIECE_BYTES", 1)  # a layer, and all at once

    async def act(pool: WorkerPool) -> None:
        runner, ran = pool.members["d"].runner, list[int]()
        step, lay_down = runner.step, runner.lay_down

        async def one_step(batch: Batch) -> Chosen:
            ran.append(0)
            return await step(batch)

        async def one_write(copies: Sequence[KvCopy], pieces: Sequence[KvPiece]) -> None:
            ran.append(len(pieces))
            await lay_down(copies, pieces)

        monkeypatch.setattr(runner, "step", one_step)
        monkeypatch.setattr(runner, "lay_down", one_write)
        await pool.client.submit(submit("here", random_prompt(9, 20), max_tokens=150), "d")
        await ask(pool, 3, length=200)
        await pool.until(lambda: taken(pool) == 3)
        decoding = ran[ran.index(0) :]
        assert max(ran) == 1
        assert all(not (one and other) for one, other in pairwise(decoding))

    with_pair(act, kind=replace(MODELLED, kv_transfer="by-request"))


def test_no_more_is_received_than_may_wait_but_for_a_piece_of_each_request(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decode, "MOST_STAGED_BYTES", 1)
    monkeypatch.setattr(pieces, "LEAST_PIECE_BYTES", 1)
    staged, stage = [0], IncomingKv.stage

    def counted_stage(one: IncomingKv, region: KvRegion, data: memoryview) -> None:
        stage(one, region, data)
        staged.append(len(one._staged))

    async def act(pool: WorkerPool) -> None:
        await pool.client.submit(submit("here", random_prompt(9, 20), max_tokens=150), "d")
        await ask(pool, 3)
        await pool.until(lambda: taken(pool) == 3)

    monkeypatch.setattr(IncomingKv, "stage", counted_stage)
    with_pair(act)
    assert max(staged) == 1


def test_a_request_whose_kv_cannot_be_laid_down_ends_with_its_tokens(monkeypatch: pytest.MonkeyPatch) -> None:
    async def act(pool: WorkerPool) -> None:
        runner = pool.members["d"].runner
        lay_down = runner.lay_down

        async def fail_once(copies: Sequence[KvCopy], pieces: Sequence[KvPiece]) -> None:
            monkeypatch.setattr(runner, "lay_down", lay_down)
            raise RuntimeError("no memory")

        monkeypatch.setattr(runner, "lay_down", fail_once)
        await ask(pool)
        await pool.until(lambda: pool.client.wishes[0].is_over)
        assert failed(pool, "broken") == 1

    with_pair(act)


@pytest.mark.parametrize("late", [0.0, 0.02], ids=["soon", "late"])
def test_a_step_waits_for_an_offer_that_comes_at_once(late: float, monkeypatch: pytest.MonkeyPatch) -> None:
    offer = KvSender._offer

    async def offer_late(sender: KvSender, one: OutgoingKv) -> None:
        await asyncio.sleep(late)
        await offer(sender, one)

    async def act(pool: WorkerPool) -> None:
        d = pool.members["d"]
        step, incoming = d.runner.step, d.worker._deployment.disaggregation.decode._incoming
        begun, after = list[set[str]](), 0

        async def until_all_came(batch: Batch) -> Chosen:
            """A step that ends when the last piece of what is on its way has come."""
            nonlocal after
            begun.append({chunk.request_id for chunk in batch.chunks})
            chosen = await step(batch)
            while any(not one.came.is_full for one in incoming.values()):
                await asyncio.sleep(0.0001)
                after = len(begun)
            return chosen

        monkeypatch.setattr(d.runner, "step", until_all_came)
        slow_link(pool, 0.006)  # the last piece comes when the first token is there
        await pool.client.submit(submit("here", random_prompt(9, 20), max_tokens=60), "d")
        await pool.until(lambda: len(begun) > 3)
        await ask(pool)
        await pool.until(lambda: all(wish.is_over for wish in pool.client.wishes))
        assert taken(pool) == 1
        assert ("r0" in begun[after]) == (late < OFFER_SECONDS)

    monkeypatch.setattr(KvSender, "_offer", offer_late)
    with_pair(act, kind=FLOAT32)


def test_what_the_decode_worker_has_in_its_prefix_cache_is_not_sent_and_what_the_other_has_is() -> None:
    async def act(pool: WorkerPool) -> None:
        await ask(pool, length=200)
        await pool.until(lambda: pool.client.wishes[0].is_over)
        whole = counted(pool, "p", "transfer_bytes_total")
        again = submit("again", random_prompt(0, 200), max_tokens=6)
        await pool.client.submit(again, "p", decode="d")
        await pool.until(lambda: taken(pool) == 2)
        assert counted(pool, "p", "transfer_bytes_total") - whole == whole * 8 / 200  # all but twelve blocks
        await pool.client.submit(submit("there", random_prompt(0, 200), max_tokens=6), "p", decode="e")
        await pool.until(lambda: taken(pool) == 3)
        assert counted(pool, "p", "transfer_bytes_total") == whole * 2 + whole * 8 / 200

    with_pair(act, "e")


def test_kv_that_finds_no_room_to_wait_stays_in_the_cache_until_it_is_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prefill, "MOST_STAGED_BYTES", 0)

    async def act(pool: WorkerPool) -> None:
        await ask(pool, 3, length=400)
        await pool.until(lambda: taken(pool) == 3)

    with_pair(act)
    with_pair(act, kind=FLOAT32)


def test_a_request_of_one_token_goes_nowhere_else() -> None:
    async def act(pool: WorkerPool) -> None:
        await ask(pool, tokens=1)
        await pool.until(lambda: pool.client.wishes[0].is_over)
        assert (taken(pool), failed(pool, "refused"), counted(pool, "p", "transfer_bytes_total")) == (0, 0, 0)

    with_pair(act)


def test_a_request_that_was_resumed_is_handed_over_after_its_next_token() -> None:
    async def act(pool: WorkerPool) -> None:
        request = submit("r", random_prompt(3, 100), max_tokens=20)
        tokens = pool.kind.alone(request)
        resumed = replace_struct(request, generated=tokens[:7])
        await pool.client.submit(resumed, "p", decode="d")
        pool.client.wishes[0].tokens += tokens[:7]
        await pool.until(lambda: taken(pool) == 1)

    for kind in (MODELLED, FLOAT32):
        with_pair(act, kind=kind)


def test_a_report_says_what_is_sent_and_what_is_kept() -> None:
    async def act(pool: WorkerPool) -> None:
        pool.faults.message_seconds = 0.3
        await ask(pool, 2)
        await pool.until(lambda: pool.reports["p"].sending_kv == 2)
        await pool.until(lambda: (load := pool.reports["d"].load) is not None and load.reserved_requests == 2)
        assert counted(pool, "d", "reserved_blocks") == 2 * 13
        pool.faults.message_seconds = 0.003

    with_pair(act)


def test_pieces_are_cut_by_the_pace_of_links_once_it_was_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    paces, step = list[float](), KvTransfer.step

    def stepped(transfer: KvTransfer, start: int, stop: int, link_pace: float, *, leaves: bool) -> tuple[range, ...]:
        paces.append(link_pace)
        return step(transfer, start, stop, link_pace, leaves=leaves)

    async def act(pool: WorkerPool) -> None:
        slow_link(pool, 0.001)
        for number in range(2):
            await ask(pool, first=number)
            await pool.until(lambda: all(wish.is_over for wish in pool.client.wishes))

    monkeypatch.setattr(outgoing, "LEAST_PIECE_BYTES", 1)  # of a sample
    monkeypatch.setattr(KvTransfer, "step", stepped)
    with_pair(act)
    assert paces[0] == SLOW_LINK != paces[-1]
