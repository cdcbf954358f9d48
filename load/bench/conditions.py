"""Under what a bench measured: on which machine, and whether that was there all the time (pure)."""

import msgspec

from livescale.load.bench.samples import Counts
from livescale.load.hardware import Hardware


class Conditions(msgspec.Struct, frozen=True):
    """What a reader of the figures has to know."""

    hardware: Hardware
    samples: Counts

    def lines(self) -> list[str]:
        return [*self.hardware.lines(), *self.samples.lines()]

    def as_line(self, bench: str) -> dict[str, object]:
        """Of JSON, beside those of the cases."""
        hardware, samples = (msgspec.structs.asdict(each) for each in (self.hardware, self.samples))
        return {"bench": bench, "case": "machine", **hardware, "samples": samples["taken"], "again": samples["again"]}
