"""Links that note what they carry, and may damage it."""

from random import Random

from livescale.load.simulate.seeds.history import Delivered, History
from livescale.shared.simulation.modelled_links import Mailbox, ModelledNetwork, SentContent, Way
from livescale.shared.simulation.sparse_memory import SparseContent
from livescale.shared.simulation.virtual_clock import machine_time

DAMAGED = bytes(byte ^ 0xFF for byte in range(256))
LEAST_DAMAGED_BYTES = 256  # smaller messages are of protocols, whose links check them


class WatchedMailbox(Mailbox):
    """A mailbox of the local bus that notes each message as it arrives."""

    def __init__(self, way: Way, network: "WatchedNetwork") -> None:
        super().__init__(way)
        self._network = network
        self._sender, self._receiver, self._channel = way[0].decode(), way[1].decode(), way[2]

    def put(self, tag: int, data: SentContent) -> None:
        came = Delivered(machine_time(), self._sender, self._receiver, len(data), self._channel)
        self._network.seen.delivered.append(came)
        super().put(tag, self._network.carried(data))


class WatchedNetwork(ModelledNetwork):
    """A network whose links damage messages: the largest of the shares `damaging`."""

    def __init__(self, delay_seconds: float, seen: History, seed: int) -> None:
        super().__init__(delay_seconds)
        self.seen = seen
        self.damaging: list[float] = []
        self._chance = Random(f"damage {seed}")

    def make_mailbox(self, way: Way) -> Mailbox:
        return WatchedMailbox(way, self)

    def carried(self, data: SentContent) -> SentContent:
        """Return what a message is when it arrives, decoded where it travels as bytes."""
        share = max(self.damaging, default=0.0)
        if not share or len(data) < LEAST_DAMAGED_BYTES or self._chance.random() >= share:
            return data
        if isinstance(data, SparseContent):
            return data.damaged()
        return bytes(data).translate(DAMAGED)
