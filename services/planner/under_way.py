"""The flows of a scale that carry parameters now. Pure."""

from collections.abc import Collection, Iterable, Iterator

from livescale.shared.messages.transfers import Flow


class FlowsUnderWay:
    """Those along which somebody still receives, in the order in which they were planned."""

    def __init__(self, flows: Iterable[Flow]) -> None:
        self._flows = list(flows)
        self._sent: set[int] = set()  # tickets of those whose sender was told

    def __iter__(self) -> Iterator[Flow]:
        return iter(self._flows)

    def add(self, flows: Iterable[Flow]) -> None:
        self._flows += flows

    def into(self, worker: str) -> list[Flow]:
        return [flow for flow in self._flows if flow.receiver == worker]

    def out_of(self, node: str) -> list[Flow]:
        return [flow for flow in self._flows if flow.sender == node]

    def drop(self, receivers: Iterable[str]) -> None:
        """These receive nothing any more."""
        gone = set(receivers)
        self._flows = [flow for flow in self._flows if flow.receiver not in gone]

    def behind(self, workers: Collection[str]) -> set[str]:
        """Who receives anything through these."""
        behind, ahead = set[str](), set(workers)
        while ahead:
            ahead = {flow.receiver for flow in self._flows if flow.sender in ahead} - behind
            behind |= ahead
        return behind

    def take_unsent(self, ready: Collection[str], awaited: Collection[str]) -> Iterator[tuple[str, list[Flow]]]:
        """Senders that are still to be told, with their flows to who is `ready`; not while a receiver is `awaited`."""
        unsent: dict[str, list[Flow]] = {}
        for flow in self._flows:
            if flow.ticket not in self._sent and (flow.receiver in ready or flow.receiver in awaited):
                unsent.setdefault(flow.sender, []).append(flow)
        for sender, flows in unsent.items():
            if not any(flow.receiver in awaited for flow in flows):
                self._sent.update(flow.ticket for flow in flows)
                yield sender, flows
