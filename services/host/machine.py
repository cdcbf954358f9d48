"""How much memory this machine can still give."""

from pathlib import Path

MEMINFO = Path("/proc/meminfo")
CGROUP_LIMIT = Path("/sys/fs/cgroup/memory.max")


def available_bytes(meminfo: Path = MEMINFO, cgroup_limit: Path = CGROUP_LIMIT) -> int:
    """What the kernel could hand out without swapping, within the container's limit where there is one."""
    fields = dict(line.split(":", 1) for line in meminfo.read_text().splitlines())
    available = int(fields["MemAvailable"].split()[0]) * 1024
    limit = cgroup_limit.read_text().strip() if cgroup_limit.exists() else "max"
    return available if limit == "max" else min(available, int(limit))
