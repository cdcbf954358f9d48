"""Subjects: a message on one of them is heard on no other, and every one fits what it is for."""

from collections import Counter
from itertools import permutations

import msgspec

from livescale.shared import subjects
from livescale.shared.bus.codec import fill, fill_wildcards, hole_names, matches
from livescale.shared.bus.contract import EVENTS, Call, Topic

ALL = {name: one for name, one in vars(subjects).items() if isinstance(one, Call | Topic)}
HOLES = dict.fromkeys(("id", "gateway", "worker", "previous", "service", "model", "plan", "host", "instance"), "x-0")


def subject_of(pattern: str) -> str:
    return fill(pattern, {name: HOLES[name] for name in hole_names(pattern)})


def test_a_message_is_heard_on_its_own_subject_alone() -> None:
    for one, other in permutations(ALL.values(), 2):
        assert not matches(fill_wildcards(other.pattern, {}), subject_of(one.pattern)), (one.pattern, other.pattern)


def test_a_service_answers_under_its_own_name_and_a_process_under_its_id() -> None:
    for one in ALL.values():
        first, *_ = one.pattern.split(".")
        assert (first == "svc") == (not hole_names(one.pattern)), one.pattern
        if isinstance(one, Call):
            assert one.doc, one.pattern
            assert not one.queue or first == "svc", one.pattern


def test_events_for_people_are_json_on_subjects_that_jetstream_keeps() -> None:
    events = [one for one in ALL.values() if isinstance(one, Topic) and matches(EVENTS, subject_of(one.pattern))]
    assert {one.pattern.partition(".")[0] for one in events} == {"evt"}
    assert len(events) == sum(one.pattern.startswith("evt.") for one in ALL.values())
    assert all(one.json for one in events)


def test_a_message_that_comes_from_outside_is_checked_by_its_type() -> None:
    types = [one.request for one in ALL.values() if isinstance(one, Call)]
    types += [one.reply for one in ALL.values() if isinstance(one, Call)]
    assert all(issubclass(type, msgspec.Struct) for type in types)
    # A question of one call is no question of another, but where the call says what is to be done with the same thing.
    shared = Counter(one.request.__name__ for one in ALL.values() if isinstance(one, Call))
    assert {name for name, count in shared.items() if count > 1} <= {"Named", "MoveKv"}
