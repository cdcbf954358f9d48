"""A worker's sends leave serving its time."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from livescale.services.worker.engine.send_share import LONGEST_PAUSE_SECONDS, SAVED_SECONDS, SHARE, SendShare

GAP = 0.0002  # between steps, in which the loop works for serving


class Source:
    """A worker that computes steps, and sends chunks as fast as it may, each of which costs its loop some seconds.

    `steals`: the part of them that the step loses; with a core for each nothing.
    """

    def __init__(self, step_seconds: float, chunk_seconds: float, steals: float = 1.0) -> None:
        self.share = SendShare()
        self.now = self.loop = 0.0
        self.steps = self.stolen = 0.0  # seconds
        self.chunks = 0
        self._step_seconds = step_seconds
        self._chunk_seconds = chunk_seconds
        self._steals = steals
        self._next = 0.0  # when a chunk may be sent

    def serve(self, seconds: float) -> None:
        end = self.now + seconds
        while self.now < end:
            self._step()
            self.now += GAP
            self.loop += GAP

    def _step(self) -> None:
        began, loop, left = self.now, self.loop, self._step_seconds
        self.share.step_begins(self.now, self.loop)
        while left > 0:
            if self._next <= self.now:
                self._send()
                left += self._steals * self._chunk_seconds
            passed = min(max(self._next - self.now, self._chunk_seconds), left)
            self.now += passed
            left -= passed
        stolen = self._steals * (self.loop - loop)
        self.share.step_ends(self.now, self.loop, stolen)
        self.stolen += stolen
        self.steps += self.now - began

    def _send(self) -> None:
        self.chunks += 1
        self.loop += self._chunk_seconds
        pause = self.share.pause(self.now, self.loop)
        self._next = self.now + (self._chunk_seconds if pause is None else pause.seconds)


steps = st.floats(0.001, 0.5)
chunks = st.floats(1e-4, SHARE * LONGEST_PAUSE_SECONDS)


@settings(max_examples=25, deadline=None)
@given(step_seconds=steps, chunk_seconds=chunks)
def test_sends_take_no_more_than_their_share_of_the_time(step_seconds: float, chunk_seconds: float) -> None:
    source = Source(step_seconds, chunk_seconds)
    source.serve(2.0)
    assert source.stolen <= 1.01 * SHARE * source.now + SAVED_SECONDS + chunk_seconds  # a pause may last between steps


@settings(max_examples=25, deadline=None)
@given(step_seconds=steps, chunk_seconds=chunks)
def test_what_serving_leaves_is_used(step_seconds: float, chunk_seconds: float) -> None:
    source = Source(step_seconds, chunk_seconds)
    source.serve(2.0)
    assert source.stolen >= 0.9 * SHARE * source.steps - chunk_seconds


@settings(max_examples=25, deadline=None)
@given(step_seconds=steps)
def test_a_chunk_that_costs_too_much_leaves_every_so_often_even_so(step_seconds: float) -> None:
    source = Source(step_seconds, 10 * SHARE * LONGEST_PAUSE_SECONDS)
    source.serve(2.0)
    assert source.chunks == pytest.approx(2.0 / LONGEST_PAUSE_SECONDS, rel=0.5)


def test_where_steps_lose_nothing_sends_do_not_wait() -> None:
    source = Source(0.02, 0.002, steals=0.0)
    source.serve(1.0)  # that steps lose nothing has to be seen first
    before = source.chunks
    source.serve(1.0)
    assert source.chunks - before == pytest.approx(1.0 / 0.002, rel=0.05)


def test_no_chunk_waits_while_nothing_is_computed() -> None:
    share = SendShare()
    share.step_begins(1.0, 0.0)
    share.step_ends(1.1, 0.09, 0.09)
    assert share.pause(1.1, 0.1) is None


def test_an_overdrawn_account_says_how_long_to_wait_and_why() -> None:
    share = SendShare()
    share.step_begins(1.0, 0.0)
    pause = share.pause(1.02, SAVED_SECONDS + SHARE * 0.02 + 0.001)
    assert pause is not None
    assert pause.seconds == pytest.approx(0.001 / SHARE)
    assert pause.reason == f"sending has more than {SHARE:.0%} of the time of steps"


def test_an_idle_moment_between_steps_pays_what_is_owed() -> None:
    share = SendShare()
    share.step_begins(1.0, 0.0)
    share.step_ends(1.1, 0.09, 0.09)
    share.step_begins(1.2, 0.09)
    assert share.pause(1.2, 0.09) is None
