"""All processes of a server, found by a mark in their environment: memory and CPU time."""

import os
import time
from collections.abc import Iterable
from pathlib import Path

TICKS_PER_S = os.sysconf("SC_CLK_TCK")


def marked(mark: str) -> list[int]:
    """Processes with ``mark`` in their environment, and their descendants."""
    found = {pid for pid in _all() if mark.encode() in _read(Path(f"/proc/{pid}/environ"))}
    return sorted({*found, *descendants(found)})


def descendants(pids: Iterable[int]) -> list[int]:
    """What these processes started, and what that started."""
    parents = {pid: parent(pid) for pid in _all()}
    found, todo = [], list(pids)
    while todo:
        one = todo.pop()
        children = [pid for pid, above in parents.items() if above == one]
        found += children
        todo += children
    return found


def parent(pid: int) -> int:
    """Who started a process; 0 if it is gone."""
    # "pid (name) state parent ...", where the name may hold anything
    fields = _read(Path(f"/proc/{pid}/stat")).decode(errors="replace").rpartition(")")[2].split()
    return int(fields[1]) if fields else 0


def memory(pids: Iterable[int]) -> dict[str, float]:
    """Resident and proportional megabytes of all of them, and how many there are."""
    found = [rows for pid in pids if (rows := _rollup(pid))]
    return {
        "rss_mb": round(sum(one["Rss"] for one in found) / 1024, 1),
        "pss_mb": round(sum(one["Pss"] for one in found) / 1024, 1),
        "private_mb": round(
            sum(one["Private_Clean"] + one["Private_Dirty"] for one in found) / 1024, 1
        ),
        "processes": len(found),
    }


def _rollup(pid: int) -> dict[str, int]:
    """What the kernel says of a process's memory, in KiB; nothing of one that is gone."""
    lines = _read(Path(f"/proc/{pid}/smaps_rollup")).decode().splitlines()[1:]
    return {line.split(":")[0]: int(line.split()[1]) for line in lines}


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


def wait_quiet(patience_s: float) -> None:
    """Wait for a second in which the whole machine uses less than a quarter of a core."""
    end = time.monotonic() + patience_s
    while True:
        before, began = machine_cpu_s(), time.perf_counter()
        time.sleep(1.0)
        quiet = machine_cpu_s() - before < 0.25 * (time.perf_counter() - began)
        if quiet or time.monotonic() > end:
            return


def raise_priority(pid: int | str, nice: int) -> None:
    """Give a session's autogroup the nice value too: nice alone counts only inside it."""
    try:
        Path(f"/proc/{pid}/autogroup").write_text(str(nice))
    except OSError:
        return


def _all() -> list[int]:
    return [int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit()]


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError:  # gone, or not ours
        return b""
