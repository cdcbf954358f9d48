"""What a bench printed on stdout, and a machine that it might have run on."""

import json
from typing import Any

from click.testing import Result

from livescale.load.bench.record import Conditions
from livescale.load.bench.samples import Counts
from livescale.load.hardware import Hardware

Line = dict[str, Any]

HARDWARE = Hardware(cpu="AMD <EPYC>", cores=2, flags=["avx512_bf16", "avx2"], stolen=0.07)
CONDITIONS = Conditions(HARDWARE, Counts(taken=9, again=2))


def records_of(result: Result, *, has_ended: bool = True) -> list[Line]:
    """As `records_in`, of a bench that was called here; where it did not come to its end its stderr says why."""
    return records_in(result.stdout, f"{result.output}\n{result.exception!r}", has_ended=has_ended)


def records_in(stdout: str, said: str, *, has_ended: bool = True) -> list[Line]:
    """Its cases; the last line is the machine's, of a bench that came to its end. All that it `said` is shown where it
    did not."""
    lines: list[Line] = [json.loads(line) for line in stdout.splitlines() if line.startswith("{")]
    if has_ended:
        assert lines, said
        assert lines.pop()["case"] == "machine", said
    return lines
