from msgspec.structs import replace

from livescale.load.incidents import RunIncident
from livescale.load.newcomers import tell_slower
from livescale.load.story import Newcomer
from tests.load import sample_run
from tests.load.sample_run import START


def newcomer(**others: object) -> Newcomer:
    """Live, whole at 24.2 s as predicted; its own first token comes at 26 s."""
    [made] = sample_run.outcome(sample_run.live_scale()).newcomers()
    return replace(made, **{"predicted_at": START + 24.0, "first_token_at": START + 26.0, "hand_offs": [], **others})


def test_where_live_was_slower_than_a_stop_the_report_says_why() -> None:
    records = sample_run.outcome().records
    [line] = tell_slower([newcomer()], records, 0.2)
    assert "its first token came 6.00 s after the decision, and would have come after 4.20 s" in line
    assert "as no worker took a request over from it before it was whole" in line
    [line] = tell_slower([newcomer(predicted_at=START + 22.0)], records, 0.2)
    assert "its parameters took 4.20 s where 2.00 s were predicted" in line
    stall = RunIncident(START + 23.0, "stall", "the machine stood still for 1.9 s", 1.9)
    [line] = tell_slower([newcomer()], records, 0.2, [stall])
    assert "as the machine stood still for 1.9 s; no worker" in line


def test_where_live_was_no_slower_or_there_was_none_nothing_is_said() -> None:
    records = sample_run.outcome().records
    for faster in (newcomer(first_token_at=START + 24.1), newcomer(live_at=None), newcomer(first_token_at=None)):
        assert list(tell_slower([faster], records, 0.2)) == []
    assert list(tell_slower([newcomer()], records, 3.0)) == []
