"""Whatever word of requests that moved comes, in any order or never: none is kept for ever, or lost in silence."""

from dataclasses import dataclass

from hypothesis import given, settings
from hypothesis import strategies as st

from livescale.services.router.effects import Lose
from livescale.shared.messages.live import RequestsMoved
from livescale.shared.messages.membership import LeaseChanged
from livescale.shared.messages.requests import RequestsEnded
from tests.router.examples import NOW, admit, lease, load, policy, report, request

TARGET, HELPERS = "t", ("h", "i")


@dataclass(frozen=True)
class Fate:
    """What becomes of a request, which begins at the target. `told`: the word that it moved is not lost."""

    to: str | None
    told: bool
    ended: bool

    @property
    def worker(self) -> str:
        return self.to or TARGET


fates = st.builds(Fate, st.sampled_from([None, *HELPERS]), st.booleans(), st.booleans())
Said = RequestsMoved | RequestsEnded | LeaseChanged


def messages(requests: dict[str, Fate], dead: set[str]) -> list[Said]:
    said: list[Said] = [lease(worker, "dead") for worker in sorted(dead)]
    for id, fate in requests.items():
        if fate.to is not None and fate.told:
            said.append(RequestsMoved(worker=fate.to, previous=TARGET, request_ids=[id]))
        if fate.ended:
            said.append(RequestsEnded(worker=fate.worker, request_ids=[id]))
    return said


@settings(max_examples=300)
@given(st.lists(fates, min_size=1, max_size=5), st.sets(st.sampled_from([TARGET, *HELPERS])), st.data())
def test_every_request_is_where_it_is_or_ended_or_said_to_be_lost_once(
    fates: list[Fate], dead: set[str], data: st.DataObject
) -> None:
    made = policy(
        report(TARGET, load(slots=8), state="live"),
        *(report(helper, load(slots=8), helping=[TARGET]) for helper in HELPERS),
    )
    requests = {f"r{number}": fate for number, fate in enumerate(fates)}
    assert admit(made, *map(request, requests)) == [(id, TARGET) for id in requests]
    lost: list[str] = []
    for said in data.draw(st.permutations(messages(requests, dead))):
        match said:
            case RequestsMoved():
                effects = made.on_moved(said, NOW)
            case RequestsEnded():
                effects = []
                made.on_ended(said)
            case LeaseChanged():
                effects = made.on_lease(said)
        made.check_invariants()
        lost += [effect.request_id for effect in effects if isinstance(effect, Lose)]
    assert len(lost) == len(set(lost))
    for id, fate in requests.items():
        believed = fate.worker if fate.told else TARGET  # the word that it moved may be lost for good
        at = made.runs_at(id)
        if fate.ended:
            assert at is None
        elif id in lost:
            assert at is None
            assert dead & {TARGET, fate.worker}
        else:
            assert at == believed
            assert at not in dead
