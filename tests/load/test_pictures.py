import xml.etree.ElementTree as ElementTree

import numpy as np
import pytest
from matplotlib.figure import Figure

from livescale.load.pictures import draw_pictures, gap_points, paint_blocks, rate_of, running_percentile, ttft_points
from tests.load import sample_run
from tests.load.sample_run import START, record


def test_rates_are_counted_by_stretches_of_time() -> None:
    assert rate_of([START + 0.1, START + 0.9, START + 2.5], START, START + 3, width=1.0) == [
        (0.5, 2.0),
        (1.5, 0.0),
        (2.5, 1.0),
    ]


def test_points_carry_time_and_latency() -> None:
    records = [record(0, 2.0, ttft=0.5, gap=0.1, tokens=3)]
    assert ttft_points(records, START) == [(2.0, pytest.approx(0.5))]
    assert gap_points(records, START) == [
        (pytest.approx(2.6), pytest.approx(0.1, abs=1e-5)),
        (pytest.approx(2.7), pytest.approx(0.1, abs=1e-5)),
    ]
    assert running_percentile([(0.1, 1.0), (1.9, 3.0), (4.5, 7.0)], 50) == [(1.0, 2.0), (5.0, 7.0)]


def test_each_picture_is_xml_with_a_name_and_the_pages_text_colour() -> None:
    pictures = draw_pictures(sample_run.outcome())
    assert [picture.title for picture in pictures] == [
        "Requests",
        "Instances",
        "Queue",
        "Time to first token",
        "Parameters arriving",
        "Time between tokens",
    ]
    for picture in pictures:
        root = ElementTree.fromstring(picture.svg)
        assert root.get("role") == "img"
        assert root.get("aria-label") == picture.title
        assert root.get("width") is None
        assert "currentColor" in picture.svg
        assert "#010203" not in picture.svg


def test_the_moments_of_a_new_instance_are_marked_where_its_blocks_were() -> None:
    outcome = sample_run.outcome(sample_run.live_scale())
    axes = Figure().add_subplot()
    paint_blocks(axes, outcome)
    lines = [(line.get_marker(), np.asarray(line.get_xydata())) for line in axes.get_lines()]
    found = {mark: (round(float(xy[0, 0]), 2), float(xy[0, 1])) for mark, xy in lines if len(xy) == 1}
    shared = found.pop("D")
    assert found == {"^": (1.0, 1.0), ">": (1.1, 2.0), "s": (4.2, 12.0), "P": (4.3, 12.0), "*": (4.8, 12.0)}
    assert 1.0 < shared[0] < 4.2
