"""From bus events to what happened."""

import random

import pytest
from msgspec import structs

from livescale.load.story import Newcomer, Story
from livescale.shared.messages.live import RequestsMoved
from livescale.shared.messages.membership import Beat, RouterReport
from livescale.shared.messages.scaling import Phase, ScaleRecord
from tests.load import sample_run
from tests.load.sample_run import START, scale_out_and_in, told


def test_a_newcomer_is_followed_from_decision_to_first_token() -> None:
    (newcomer,) = told(scale_out_and_in()).newcomers(START)
    assert (newcomer.worker, newcomer.instance, newcomer.source) == ("worker-1", "instance-of-worker-1", "worker-0")
    assert [ready for _, ready in newcomer.blocks] == list(range(1, 13))
    assert newcomer.total_blocks == 12
    assert newcomer.since_decision(newcomer.first_byte_at) == pytest.approx(1.2)
    assert newcomer.live_at is None
    assert newcomer.since_decision(newcomer.whole_at) == pytest.approx(4.2)
    assert newcomer.since_decision(newcomer.serving_at) == pytest.approx(4.3)
    assert newcomer.since_decision(newcomer.first_token_at) == pytest.approx(4.8)


def test_it_is_known_since_when_a_new_instance_was_live() -> None:
    live = Phase(name="live", at=START + 21.5, node="worker-1")
    (newcomer,) = told([(24.9, sample_run.scale(20.0, "worker-1", phases=[live]))]).newcomers(START)
    assert newcomer.since_decision(newcomer.live_at) == pytest.approx(1.5)


def test_a_newcomer_that_no_path_leads_to_had_kept_its_parameters() -> None:
    scale = sample_run.scale(20.0, "worker-1")
    assert scale.plan is not None
    kept = structs.replace(scale, plan=structs.replace(scale.plan, flows=[]))
    (newcomer,) = told([(24.9, kept)]).newcomers(START)
    assert newcomer.source == "itself"


def test_what_a_live_newcomer_handed_over_and_the_first_token_that_it_took_part_in_are_known() -> None:
    (newcomer,) = told(sample_run.live_scale()).newcomers(START)
    assert newcomer.since_decision(newcomer.first_layer_at) == pytest.approx(1.1)
    assert newcomer.handed_over == {"worker-0": 2}
    # No layer of the first request had been run: its token does not count for the new instance.
    records = [sample_run.record(index, due, ttft=2.0) for index, due in ((44, 19.0), (45, 20.0), (46, 18.0))]
    assert newcomer.shared_token_at(records) == START + 22.0
    assert newcomer.shared_token_at(records[:1]) is None
    assert structs.replace(newcomer, whole_at=START + 21.4).shared_token_at(records) is None


def test_what_is_handed_over_belongs_to_the_load_that_its_worker_is_at() -> None:
    events = sample_run.live_scale()
    again = structs.replace(sample_run.scale(30.0, "worker-1"), id="again")
    assert again.plan is not None
    again = structs.replace(again, plan=structs.replace(again.plan, id="again"))
    later = structs.replace(sample_run.report("worker-1", "live"), plan_id="again")
    moved = RequestsMoved(worker="worker-2", previous="worker-1", request_ids=["req-9"], layers=1)
    first, second = told([*events, (30.1, again), (30.2, later), (30.3, moved)]).newcomers(START)
    assert (first.handed_over, second.handed_over) == ({"worker-0": 2}, {"worker-2": 1})


def test_events_may_come_in_any_order_but_the_last_record_counts() -> None:
    events = scale_out_and_in()
    facts = told(events).newcomers(START)
    last = next(event for event in reversed(events) if isinstance(event[1], ScaleRecord))
    for seed in range(20):
        random.Random(seed).shuffle(events)
        assert told([*events, last]).newcomers(START) == facts


def test_what_is_not_known_is_none() -> None:
    story = told([(20.1, sample_run.scale(20.0, "worker-1"))])
    (newcomer,) = story.newcomers(START)
    assert newcomer == Newcomer(
        "instance-of-worker-1", "worker-1", "worker-0", START + 20, [], None, None, None, None, None
    )
    assert newcomer.since_decision(newcomer.first_token_at) is None


def test_scales_decided_before_the_load_are_not_newcomers() -> None:
    events = [(-5.0, sample_run.scale(-5.0, "worker-0")), *scale_out_and_in()]
    assert [newcomer.worker for newcomer in told(events).newcomers(START)] == ["worker-1"]


def test_states_are_counted_from_each_change_on() -> None:
    counts = [(round(at - START, 1), dict(count)) for at, count in told(scale_out_and_in()).state_counts()]
    assert counts == [
        (-1.0, {"serving": 1}),
        (-1.0, {"serving": 1, "spare": 1}),
        (20.2, {"serving": 1, "loading": 1}),
        (24.3, {"serving": 2}),
        (50.1, {"serving": 1, "draining": 1}),
        (51.0, {"serving": 1, "spare": 1}),
    ]


def test_progress_queue_and_presence_are_the_latest() -> None:
    story = told([event for event in scale_out_and_in() if event[0] < 23])
    assert story.progress("worker-1") == (8, 12)
    assert story.progress("worker-0") is None
    assert not story.settled()
    story.on_message(sample_run.report("worker-1", "serving"), START + 24)
    assert story.settled()
    assert story.serving() == 2
    assert [report.id for report in story.present(START + 25)] == ["worker-1"]  # worker-0 has been silent since -1 s
    assert [point.waiting for point in told(scale_out_and_in()).queue] == [3, 3]


def test_progress_is_that_of_the_load_under_way() -> None:
    story = told([event for event in scale_out_and_in() if event[0] < 30])
    assert story.progress("worker-1") == (12, 12)
    story.on_message(structs.replace(sample_run.report("worker-1", "loading"), plan_id="again"), START + 60)
    assert story.progress("worker-1") is None


def test_what_others_may_take_over_is_counted_while_its_worker_is_live() -> None:
    queues = RouterReport(id="router-0", epoch=1, queues=[sample_run.queue(3)])
    events = sorted([*sample_run.live_scale(), (22.0, queues)], key=lambda event: event[0])
    points = told(events)
    assert [(round(point.at - START), point.shared) for point in points.queue] == [(22, 3), (29, 0), (30, 0)]


def test_other_models_and_other_messages_are_passed_over() -> None:
    story = Story("another")
    for at, message in scale_out_and_in():
        story.on_message(message, START + at)
    story.on_message(Beat(service="monitor", id="monitor-0", epoch=1), START)
    assert story.newcomers(START) == []
    assert story.decisions == []
    assert story.queue == []
