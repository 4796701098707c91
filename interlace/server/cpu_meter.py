"""Processor and memory use of this machine, from ``/proc``."""

from __future__ import annotations

from pathlib import Path

from interlace.server.snapshot import CpuFigures

_KIB = 1024


class CpuMeter:
    """Reads the counters; utilization is over the time between two reads."""

    def __init__(self, proc: Path = Path("/proc")) -> None:
        self._stat = proc / "stat"
        self._meminfo = proc / "meminfo"
        self._busy, self._total = self._ticks()

    def read(self) -> CpuFigures:
        """The figures now."""
        busy, total = self._ticks()
        spent = total - self._total
        utilization = (busy - self._busy) / spent if spent > 0 else 0.0
        self._busy, self._total = busy, total
        memory = self._memory_bytes()
        total_bytes = memory.get("MemTotal", 0)
        used_bytes = total_bytes - memory.get("MemAvailable", total_bytes)
        return CpuFigures(utilization, total_bytes, used_bytes)

    def _ticks(self) -> tuple[int, int]:
        """Busy and all ticks of all processors since the machine started."""
        fields = self._stat.read_text().partition("\n")[0].split()[1:9]
        ticks = [int(field) for field in fields]
        idle = ticks[3] + ticks[4]  # idle, and idle with I/O outstanding
        return sum(ticks) - idle, sum(ticks)

    def _memory_bytes(self) -> dict[str, int]:
        found = {}
        for line in self._meminfo.read_text().splitlines():
            name, _, value = line.partition(":")
            if name in ("MemTotal", "MemAvailable"):
                found[name] = int(value.split()[0]) * _KIB
        return found
