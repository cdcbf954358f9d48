"""How much memory this machine can still give."""

from pathlib import Path

MEMINFO = Path("/proc/meminfo")
CGROUP = Path("/sys/fs/cgroup")


def available_bytes(meminfo: Path = MEMINFO, cgroup: Path = CGROUP) -> int:
    """What the kernel could hand out without swapping, within the container's limit where there is one."""
    available = _fields(meminfo.read_text().replace(":", " "))["MemAvailable"] * 1024
    limit = (cgroup / "memory.max").read_text().strip() if (cgroup / "memory.max").exists() else "max"
    if limit == "max":
        return available
    used = int((cgroup / "memory.current").read_text())
    # Files that were read count as used until somebody else wants the memory.
    given_up = _fields((cgroup / "memory.stat").read_text()).get("inactive_file", 0)
    return max(0, min(available, int(limit) - used + given_up))


def _fields(text: str) -> dict[str, int]:
    return {name: int(value) for name, value, *_ in map(str.split, text.splitlines())}
