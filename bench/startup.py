"""Start-up cold and warm, and memory per process: `python -m bench.startup models/`.

Cold: no profiles and no shared weights; warm: the second start. Memory is Pss from /proc, which
divides shared pages among those who share them.
"""

from __future__ import annotations

import argparse
import json
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from bench.harness import processes


def _start(models: Path, cache: Path) -> dict[str, object]:
    argv = [sys.executable, "-c", "from interlace.cli.main import main; main()", "serve"]
    ports = ["--http-port", "0", "--grpc-port", "0", "--metrics-port", "0"]
    started_s = time.perf_counter()
    server = subprocess.Popen(
        [*argv, str(models), "--profiles", str(cache / "profiles"), *ports],
        stderr=subprocess.PIPE,
        text=True,
    )
    assert server.stderr is not None
    for line in server.stderr:
        if line.startswith("ready:"):
            break
    ready_s = time.perf_counter() - started_s
    pids = [server.pid, *processes.descendants([server.pid])]
    memory = {f"{pid}:{_role(pid, server.pid)}": processes.memory([pid]) for pid in pids}
    server.send_signal(signal.SIGTERM)
    server.communicate()
    total = round(sum(m["pss_mb"] for m in memory.values()), 1)
    return {"ready_s": round(ready_s, 2), "pss_mb": total, "processes": memory}


def _role(pid: int, server: int) -> str:
    if pid == server:
        return "server"
    return "fork-server" if processes.parent(pid) == server else "worker"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("models", type=Path)
    parser.add_argument("--warm", type=int, default=3, help="warm starts to time")
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        print(json.dumps({"start": "cold", **_start(asked.models, Path(folder))}), flush=True)
        for _ in range(asked.warm):
            print(json.dumps({"start": "warm", **_start(asked.models, Path(folder))}), flush=True)


if __name__ == "__main__":
    main()
