from pathlib import Path

import pytest

from livescale.load.client import LoadClient, open_session
from livescale.load.demo.plan import DemoLoad, MeasuredRates
from livescale.load.demo.run import (
    CalibrationFailed,
    calibrate,
    describe_load,
    make_stack_settings,
    phase_name,
    rate_apart,
    rate_together,
)
from livescale.load.settings import DemoSettings
from livescale.load.stats import Tally
from livescale.load.target import learn_target
from livescale.load.trace import Arrival, Window
from livescale.shared.runtime.clock import SystemClock
from tests.load import sample_run
from tests.load.scripted_server import ScriptedServer


async def test_calibration_measures_prefill_alone_and_decode_together() -> None:
    server = ScriptedServer(token_seconds=0.02)
    async with server.serving() as url, open_session(url, "", 10) as session:
        target = await learn_target(session, None)
        capacity = await calibrate(LoadClient(session, "tiny", SystemClock(), Tally()), target)
    # 32 prompt tokens (half the context) in 20 ms; eight streams with a token each 20 ms.
    assert capacity.prefill_rate == pytest.approx(32 / 0.02, rel=0.5)
    assert capacity.decode_rate == pytest.approx(8 / 0.02, rel=0.5)


async def test_calibration_says_what_failed() -> None:
    async with ScriptedServer(["refuse"]).serving() as url, open_session(url, "", 10) as session:
        target = await learn_target(session, None)
        with pytest.raises(CalibrationFailed, match="failed: HTTP 429: the queue is full"):
            await calibrate(LoadClient(session, "tiny", SystemClock(), Tally()), target)


def test_streams_that_did_not_run_together_tell_at_least_a_rate() -> None:
    first, second = sample_run.record(0, 0.0), sample_run.record(1, 10.0)
    assert rate_together([first, second]) is None
    seconds = second.token_at[-1] - first.sent
    assert rate_apart([first, second]) == pytest.approx((len(first.token_at) + len(second.token_at)) / seconds)


async def test_calibration_goes_on_where_every_token_of_an_answer_comes_at_once() -> None:
    server = ScriptedServer(token_seconds=0.0)
    async with server.serving() as url, open_session(url, "", 10) as session:
        target = await learn_target(session, None)
        capacity = await calibrate(LoadClient(session, "tiny", SystemClock(), Tally()), target)
    assert capacity.decode_rate > 0


LOAD = DemoLoad(tuple(Arrival(float(at), 100, 10) for at in range(60)), 60.0, Window(15.0, 35.0))


def test_the_system_is_sized_for_the_checkpoint(tmp_path: Path) -> None:
    (tmp_path / "a.safetensors").write_bytes(b"x" * 1000)
    small = make_stack_settings(DemoSettings(link_rate=5e6, workers=3, live="zigzag"), tmp_path)
    assert (small.port, small.workers, small.link_rate, small.dtype) == (0, 3, 5e6, "float32")
    assert small.live == "zigzag"
    assert (small.enable_prefix_caching, small.keep_parameters) == (False, False)
    assert small.arena_bytes == 16 * 1024 * 1024 + 2_000
    with (tmp_path / "b.safetensors").open("wb") as file:
        file.truncate(400_000_000)
    assert (make_stack_settings(DemoSettings(), tmp_path).arena_bytes or 0) > 800_000_000


@pytest.mark.parametrize(("elapsed", "name"), [(0, "calm"), (14.9, "calm"), (15, "burst"), (35, "calm"), (70, "calm")])
def test_the_phase_follows_the_load(elapsed: float, name: str) -> None:
    assert phase_name(LOAD, elapsed) == name


def test_the_load_is_described_with_what_was_measured_and_chosen() -> None:
    line = describe_load(LOAD, MeasuredRates(1000, 100))
    assert "1000 prompt tokens/s, 100 output tokens/s, 200 ms a request" in line
    assert "60 requests in 60 s, the burst from 15 to 35 s" in line
