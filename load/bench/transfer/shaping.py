"""Measures whether shaped links carry what the topology says, with flows that meet on links between real processes."""

import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import yaml
from msgspec.structs import replace

from livescale.load.bench.record import Record, RecordPrinter, measured
from livescale.load.bench.transfer.fleet import BenchFleet, started
from livescale.load.bench.transfer.node_messages import Stream, Streams
from livescale.shared.runtime.settings import LinkSettings
from livescale.shared.transfer.chunks import MAX_CHUNK_BYTES, chunk_bytes_for

BENCH = "transfer"
WITHIN = 0.02
PLACES = ("h0", "h0/0", "h0/1", "h1/0", "h2/0")
DOMAIN, HOST_LINK = 4, 2  # times a network card's rate


@dataclass(frozen=True)
class RatedFlow:
    """A flow from one place to another; `share` is what it ought to get, as a multiple of a network card's rate."""

    sender: str
    receiver: str
    share: float


CASES: Mapping[str, tuple[RatedFlow, ...]] = {
    "one flow": (RatedFlow("h0/0", "h1/0", 1),),
    "out of one card, one process": (RatedFlow("h0/0", "h1/0", 1 / 2), RatedFlow("h0/0", "h2/0", 1 / 2)),
    "out of one card, two processes": (RatedFlow("h0/0", "h1/0", 1 / 2), RatedFlow("h0/1", "h2/0", 1 / 2)),
    "into one card": (RatedFlow("h1/0", "h0/0", 1 / 2), RatedFlow("h2/0", "h0/1", 1 / 2)),
    "out and in at once": (RatedFlow("h0/0", "h1/0", 1), RatedFlow("h1/0", "h0/0", 1)),
    "what one cannot use another gets": (
        *(RatedFlow(sender, "h1/0", 1 / 3) for sender in ("h0/0", "h0/1", "h2/0")),
        RatedFlow("h2/0", "h0/0", 2 / 3),
    ),
    "domain and card at once": (RatedFlow("h0/0", "h0/1", DOMAIN), RatedFlow("h0/0", "h1/0", 1)),
    "host link and card at once": (RatedFlow("h0", "h0/0", HOST_LINK), RatedFlow("h0", "h1/0", 1)),
}


def shaping(printer: RecordPrinter, settings: LinkSettings, rate: float, seconds: float) -> Iterator[Record]:
    """Run each case for `seconds`, and yield the flow whose rate is farthest from what it should be."""
    gpus = {"count": 2, "host-link": f"{HOST_LINK * rate:.0f} B/s", "scale-up": f"{DOMAIN * rate:.0f} B/s"}
    with emulated(3, rate, gpus) as (topology, file):
        shaped = replace(settings, topology=str(topology), shaping_file=str(file))
        with started(len(PLACES), shaped, [MAX_CHUNK_BYTES], has_spare=True, places=PLACES) as fleet:
            for case, flows in CASES.items():
                printer.progress(f"shaping: {case}")
                rates = printer.samples.take(partial(run_warm, fleet, flows, rate, seconds), fleet.renew)
                farthest = max(zip(rates, flows, strict=True), key=lambda pair: abs(pair[0] / pair[1].share - rate))
                ideal = farthest[1].share * rate
                yield measured(BENCH, f"shaping, {case}", farthest[0] / 1e6, "MB/s", ideal / 1e6, within=WITHIN)


@contextmanager
def emulated(hosts: int, rate: float, gpus: Mapping[str, object], disk: float = 0.0) -> Iterator[tuple[Path, Path]]:
    """Write a topology file of hosts with these GPUs, whose network cards carry `rate` (and disks too, unless set
    otherwise). Yields it and the shaping file that the processes share."""
    card, disk_rate = f"{rate:.0f} B/s", f"{disk or rate:.0f} B/s"
    host = {"name": "h", "count": hosts, "memory": "1 GiB", "nic": card, "disk": disk_rate}
    with tempfile.TemporaryDirectory() as directory:
        topology = Path(directory, "cluster.yaml")
        topology.write_text(yaml.safe_dump({"hosts": [host | {"gpus": [{"memory": "1 GiB"} | dict(gpus)]}]}))
        yield topology, Path(directory, "links")


def run_warm(fleet: BenchFleet, flows: Sequence[RatedFlow], rate: float, seconds: float) -> list[float]:
    """What is first is slow: connections are made."""
    run(fleet, flows, rate, 0.0)
    return run(fleet, flows, rate, seconds)


def run(fleet: BenchFleet, flows: Sequence[RatedFlow], rate: float, seconds: float) -> list[float]:
    """The flows at once, each with what ought to take it `seconds`; what each got, in bytes a second."""
    node = dict(zip(PLACES, fleet.nodes, strict=True))
    streams: dict[str, list[Stream]] = {place: [] for flow in flows for place in (flow.receiver, flow.sender)}
    sent = []
    for flow in flows:
        message_bytes = chunk_bytes_for(flow.share * rate)
        messages = round(flow.share * rate * seconds / message_bytes) + 1
        sent.append((flow.sender, len(streams[flow.sender]), messages * message_bytes))
        streams[flow.sender].append(Stream(node[flow.receiver], messages, message_bytes))
        streams[flow.receiver].append(Stream(node[flow.sender], messages, message_bytes, takes=True))
    done = fleet.run({PLACES.index(place): Streams(tuple(each)) for place, each in streams.items()})
    by_place = {PLACES[index]: each for index, each in done.items()}
    began = max(by_place[sender].began for sender, _, _ in sent)
    return [size_bytes / (by_place[sender].ends[index] - began) for sender, index, size_bytes in sent]
