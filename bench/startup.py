"""Start-up cold and warm, and memory per process.

Cold: no profiles and no shared weights; warm: the second start. Memory is Pss from /proc, which
divides shared pages among those who share them.
"""

import tempfile
import time
from pathlib import Path
from typing import Annotated, Any

from bench.attack.stand import Stand
from bench.harness import Report, Table, main, processes


def startup(
    models: Annotated[Path, "the repository"], /, *, warm: Annotated[int, "warm starts to time"] = 3
) -> Report:
    """One cold start and some warm ones."""
    found = []
    with tempfile.TemporaryDirectory() as folder:
        for number in range(1 + warm):
            kind = "warm" if number else "cold"
            found.append({"start": kind, **_start(models, Path(folder) / "profiles")})
            print(found[-1], flush=True)
    cells = [(one["start"], one["ready_s"], one["pss_mb"]) for one in found]
    return Report(tables=[Table(("start", "ready s", "Pss MB"), cells)], figures=found)


def _start(models: Path, cache: Path) -> dict[str, Any]:
    began_s = time.perf_counter()
    server = Stand(models, cache)
    try:
        server.wait_ready(600.0)
        ready_s = time.perf_counter() - began_s
        main_pid = server.process.pid
        pids = [main_pid, *processes.descendants([main_pid])]
        memory = {f"{pid}:{_role(pid, main_pid)}": processes.memory([pid]) for pid in pids}
    finally:
        server.stop()
    total = round(sum(one["pss_mb"] for one in memory.values()), 1)
    return {"ready_s": round(ready_s, 2), "pss_mb": total, "processes": memory}


def _role(pid: int, server: int) -> str:
    if pid == server:
        return "server"
    return "fork-server" if processes.parent(pid) == server else "worker"


if __name__ == "__main__":
    main(startup)
