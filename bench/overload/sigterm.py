"""SIGTERM with 32 calls in flight: who is answered, what is left behind."""

import os
import signal
import time
from collections import Counter
from pathlib import Path
from typing import Any

from bench.peers import once
from bench.peers.server import Server
from interlace.load.call import EncodedCall
from interlace.load.pool import ConnectionPool

IN_FLIGHT = 32
#: Time for all calls to reach the server before the signal.
HEAD_START_S = 0.012
ANSWERS_WITHIN_S = 12.0
LOOK_AGAIN_S = 4.0


def stop_under_load(server: Server, call: EncodedCall) -> dict[str, Any]:
    """Answers by status, how many never came, exit code and time, processes left after 4 s."""
    pool = ConnectionPool(IN_FLIGHT)
    pool.prepare(call, IN_FLIGHT)
    for _ in range(IN_FLIGHT):
        connection = pool.take(call)
        assert connection is not None
        connection.start(call)
    time.sleep(HEAD_START_S)
    began = time.perf_counter()
    os.kill(server.process.pid, signal.SIGTERM)
    statuses: Counter[str] = Counter()
    last_s = 0.0
    while statuses.total() < IN_FLIGHT and time.perf_counter() - began < ANSWERS_WITHIN_S:
        for _, status in pool.ended(pool.epoll.poll(0.05)):
            statuses["cut" if status < 0 else str(status)] += 1
            last_s = time.perf_counter() - began
    pool.close()
    return {
        "in_flight": IN_FLIGHT,
        "answers": dict(statuses),
        "never_answered": IN_FLIGHT - statuses.total(),
        "last_answer_s": round(last_s, 2),
        **_after(server, began, call.port),
    }


def _after(server: Server, began: float, port: int) -> dict[str, Any]:
    while server.process.poll() is None and time.perf_counter() - began < 30:
        time.sleep(0.02)
    gone_s = round(time.perf_counter() - began, 2)
    time.sleep(max(0.0, LOOK_AGAIN_S - (time.perf_counter() - began)))
    left = server.pids()
    return {
        "exit": server.process.poll(),
        "exit_s": gone_s,
        "left_processes": len(left),
        "left": [_command(pid) for pid in left[:6]],
        "port_still_open": _open(port),
    }


def _command(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ")[:90].decode()
    except OSError:
        return ""


def _open(port: int) -> bool:
    try:
        once.get(port, "/")
    except OSError:
        return False
    return True
