"""What befell a system while a load ran: found, told, and drawn."""

from livescale.load.incidents import ClockTimes, Life, Lives, RunIncident, Ticks


def test_a_tick_that_comes_late_is_a_stall_by_either_clock() -> None:
    ticks = Ticks(ClockTimes(10.0, 1_000.0))
    assert ticks.on_tick(ClockTimes(10.1, 1_000.1)) is None
    assert ticks.on_tick(ClockTimes(10.5, 1_000.5)) is None  # busy, and no more
    stall = ticks.on_tick(ClockTimes(12.7, 1_002.7))
    assert stall is not None
    assert (stall.at, stall.what, stall.line) == (1_002.7, "stall", "the machine stood still for 2.1 s")
    halted = ticks.on_tick(ClockTimes(12.8, 1_005.9))
    assert halted is not None
    assert halted.line == "the machine stood still for 3.1 s"


def test_deaths_and_restarts_are_found_however_fast_they_come() -> None:
    lives = Lives({"router-0": Life(10, 1), "worker-0": Life(11, 1)})
    assert lives.on_look({"router-0": Life(10, 1), "worker-0": Life(11, 1)}, 1.0) == []
    dead = lives.on_look({"router-0": Life(10, 1), "worker-0": Life(None, 1)}, 2.0)
    assert dead == [RunIncident(2.0, "death", "worker-0 died")]
    back = lives.on_look({"router-0": Life(20, 2), "worker-0": Life(12, 2)}, 3.0)
    assert [each.line for each in back] == ["router-0 died", "router-0 was started again", "worker-0 was started again"]
