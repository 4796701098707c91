"""All processes of a server, found by a mark in their environment: memory and CPU time."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable
from pathlib import Path

import psutil

TICKS_PER_S = os.sysconf("SC_CLK_TCK")


def marked(mark: str) -> list[int]:
    """Processes with ``mark`` in their environment, and their descendants."""
    found: set[int] = set()
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and mark.encode() in _read(entry / "environ"):
            found.add(int(entry.name))
    for pid in list(found):
        try:
            found.update(child.pid for child in psutil.Process(pid).children(recursive=True))
        except psutil.Error:
            continue
    return sorted(found)


def memory(pids: Iterable[int]) -> dict[str, float]:
    """Resident and proportional megabytes of all of them, and how many there are."""
    rss = pss = count = 0
    for pid in pids:
        rows = dict(
            line.split(":", 1)
            for line in _read(Path(f"/proc/{pid}/smaps_rollup")).decode().splitlines()[1:]
        )
        if rows:
            rss += int(rows["Rss"].split()[0])
            pss += int(rows["Pss"].split()[0])
            count += 1
    return {"rss_mb": round(rss / 1024, 1), "pss_mb": round(pss / 1024, 1), "processes": count}


def cpu_s(pids: Iterable[int]) -> float:
    """CPU seconds used so far by those alive, in steps of 10 ms each."""
    ticks = 0
    for pid in pids:
        text = _read(Path(f"/proc/{pid}/stat")).decode()
        if text:
            fields = text.rsplit(")", 1)[1].split()
            ticks += int(fields[11]) + int(fields[12])
    return ticks / TICKS_PER_S


def machine_cpu_s() -> float:
    """CPU seconds that all processes of the machine have used."""
    fields = [int(field) for field in Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:9]]
    return (sum(fields) - fields[3] - fields[4]) / TICKS_PER_S


def wait_quiet(patience_s: float, cpus: float = 0.25) -> bool:
    """Wait until the whole machine uses less than ``cpus`` for a second; False if it never did."""
    end = time.monotonic() + patience_s
    while True:
        before, began = machine_cpu_s(), time.perf_counter()
        time.sleep(1.0)
        if (machine_cpu_s() - before) / (time.perf_counter() - began) < cpus:
            return True
        if time.monotonic() > end:
            return False


def raise_priority(pid: int | str, nice: int) -> None:
    """Give a session's autogroup the nice value too: nice alone counts only inside it."""
    try:
        Path(f"/proc/{pid}/autogroup").write_text(str(nice))
    except OSError:
        return


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError:  # gone, or not ours
        return b""
