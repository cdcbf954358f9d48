"""Names the machine that figures were measured on, and how much of its time others took meanwhile."""

import platform
from collections.abc import Callable
from pathlib import Path

import msgspec

# What decides which kernels run and how fast, as x86 and ARM call it in /proc/cpuinfo.
FLAGS = (
    *("amx_bf16", "amx_int8", "avx512_bf16", "avx512_vnni", "avx512f", "avx2", "fma"),
    *("i8mm", "bf16", "sve2", "sve", "asimddp", "asimd"),
)
MOST_STOLEN = 0.05

Read = Callable[[str], str]


class Hardware(msgspec.Struct, frozen=True):
    """`stolen`: of the time that CPUs were wanted for the share that the hypervisor gave to others; None where the
    kernel does not tell."""

    cpu: str
    cores: int
    flags: list[str]
    stolen: float | None

    def sentence(self) -> str:
        stolen = "stolen time is not known" if self.stolen is None else f"{self.stolen:.1%} of the time was stolen"
        return f"Machine: {self.cpu}, {self.cores} cores, {' '.join(self.flags) or 'no flags that matter'}; {stolen}."

    def warning(self) -> str | None:
        if self.stolen is None or self.stolen <= MOST_STOLEN:
            return None
        return (
            f"Warning: {self.stolen:.0%} of the CPU time was stolen: others had the machine meanwhile, and figures are "
            f"not what it can do. Below {MOST_STOLEN:.0%} they are."
        )

    def lines(self) -> list[str]:
        warning = self.warning()
        return [self.sentence()] + ([] if warning is None else [warning])


class CpuTimes(msgspec.Struct, frozen=True):
    """Ticks of all CPUs since the machine started: all, those that were wanted, and those of them that were stolen."""

    all: int
    wanted: int
    stolen: int


class HardwareWatch:
    """Watches what is stolen from when it is made. `read` reads a file of /proc."""

    def __init__(self, read: Read | None = None) -> None:
        self._read = read or read_proc
        self._before = parse_times(self._read("stat"))

    def seen(self) -> Hardware:
        """The hardware, and the share of time that was stolen until now."""
        cpu, cores, flags = parse_cpu(self._read("cpuinfo"))
        return Hardware(cpu, cores, flags, stolen_share(self._before, parse_times(self._read("stat"))))


def read_proc(name: str) -> str:
    """The text of a file in /proc; empty if there is no such file."""
    try:
        return Path("/proc", name).read_text(encoding="utf-8")
    except OSError:
        return ""


def parse_cpu(cpuinfo: str) -> tuple[str, int, list[str]]:
    """The model, how many cores there are, and which of `FLAGS` the first has."""
    pairs = [(key.strip(), value.strip()) for key, _, value in (line.partition(":") for line in cpuinfo.splitlines())]
    first = dict(reversed(pairs))
    # ARM's kernels name no model.
    name = first.get("model name") or f"{platform.machine()} {first.get('CPU part', '')}".strip()
    has = set((first.get("flags") or first.get("Features") or "").split())
    return name, sum(key == "processor" for key, _ in pairs), [flag for flag in FLAGS if flag in has]


def parse_times(stat: str) -> CpuTimes | None:
    """Parse a line of /proc/stat: user nice system idle iowait irq softirq steal. The time of guests is part of user
    and nice."""
    fields = stat.partition("\n")[0].split()
    if len(fields) < 9 or fields[0] != "cpu":
        return None
    user, nice, system, idle, iowait, irq, softirq, stolen = map(int, fields[1:9])
    wanted = user + nice + system + irq + softirq + stolen
    return CpuTimes(wanted + idle + iowait, wanted, stolen)


def busy_share(before: CpuTimes | None, after: CpuTimes | None) -> float:
    """The share of the machine that was wanted between two readings; 0 where it is not known."""
    if before is None or after is None:
        return 0.0
    return (after.wanted - before.wanted) / max(1, after.all - before.all)


def stolen_share(before: CpuTimes | None, after: CpuTimes | None) -> float | None:
    """The stolen share of the time that was wanted. A share of all time would hide it where cores are idle."""
    if before is None or after is None:
        return None
    wanted = after.wanted - before.wanted
    return (after.stolen - before.stolen) / wanted if wanted > 0 else 0.0
