from xml.etree import ElementTree

import pytest
from matplotlib.container import BarContainer
from matplotlib.figure import Figure

from livescale.load.arrival_picture import DESCRIPTION, TITLE, draw_arrival, paint_arrival
from livescale.load.report import render_report
from tests.load import sample_run


def test_tokens_of_requests_that_the_new_instance_worked_on_stand_on_the_others() -> None:
    outcome = sample_run.outcome(sample_run.live_scale())
    figure = Figure()
    paint_arrival(figure, outcome.newcomers()[0], outcome.records)
    others, shared = figure.axes[0].containers
    assert isinstance(others, BarContainer)
    assert isinstance(shared, BarContainer)
    # One request had layers run, and has eight tokens.
    assert sum(bar.get_height() * bar.get_width() for bar in shared.patches) == pytest.approx(8)
    assert all(
        bar.get_y() == pytest.approx(below.get_height())
        for bar, below in zip(shared.patches, others.patches, strict=True)
    )


def test_each_moment_is_named_with_its_time() -> None:
    outcome = sample_run.outcome(sample_run.live_scale())
    figure = Figure()
    paint_arrival(figure, outcome.newcomers()[0], outcome.records)
    named = [text.get_text() for text in figure.axes[1].texts]
    assert named[0] == "1.1 s: its first layer is run"
    assert named[1].endswith(": first token it took part in")
    assert named[2] == "4.2 s: whole"


def test_an_instance_that_was_not_live_has_only_the_moment_at_which_it_is_whole() -> None:
    outcome = sample_run.outcome()
    figure = Figure()
    paint_arrival(figure, outcome.newcomers()[0], outcome.records)
    assert [text.get_text() for text in figure.axes[1].texts] == ["4.2 s: whole"]


@pytest.mark.slow
def test_the_picture_is_in_the_report_with_its_explanation() -> None:
    outcome = sample_run.outcome(sample_run.live_scale())
    picture = draw_arrival(outcome)
    assert picture is not None
    assert ElementTree.fromstring(picture.svg).get("aria-label") == TITLE
    page = render_report(outcome)
    assert f"<h2>{TITLE}</h2>" in page
    assert DESCRIPTION in page


def test_without_a_new_instance_there_is_no_picture() -> None:
    alone = [event for event in sample_run.scale_out_and_in() if event[0] < 20]
    outcome = sample_run.outcome(alone)
    assert draw_arrival(outcome) is None
    assert TITLE not in render_report(outcome)
