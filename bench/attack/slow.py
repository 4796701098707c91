"""Clients that say nothing, or a letter at a time: probes are answered all the same."""

import socket
import time
from collections import Counter
from contextlib import suppress

from bench.attack.attack import Ground, Result
from bench.attack.stand import Stand


def slow_heads(ground: Ground, stand: Stand) -> Result:
    """1,000 connections that send a letter of their head each second."""
    sockets = _open(stand.http_port, ground.count(1000))
    for sock in sockets:
        with suppress(OSError):
            sock.send(b"POST /v2/models/victim/infer HTTP/1.1\r\nX-Slow: ")
    began_s, probes = time.monotonic(), Counter[str]()
    cut_s = 0.0
    while sockets and time.monotonic() - began_s < 25:
        sockets = [sock for sock in sockets if _still_open(sock, b"x")]
        _probe(stand, probes)
        cut_s = time.monotonic() - began_s
        time.sleep(1.0)
    left = len(sockets)
    _close(sockets)
    result = Result(ground.count(1000), figures={"all_cut_s": round(cut_s, 1), "left": left})
    result.broken["not cut within 25 s"] += left
    return _judged(result, probes)


def idle(ground: Ground, stand: Stand) -> Result:
    """1,500 idle connections to HTTP and 1,500 to gRPC: the probes say what is true."""
    sockets = _open(stand.http_port, ground.count(1500)) + _open(
        stand.grpc_port, ground.count(1500)
    )
    probes: Counter[str] = Counter()
    for _ in range(10):
        _probe(stand, probes)
        time.sleep(0.5)
    _close(sockets)
    return _judged(Result(len(sockets)), probes)


def _judged(result: Result, probes: Counter[str]) -> Result:
    result.figures["probes"] = dict(probes)
    result.broken["probe not answered 200"] += sum(
        count for said, count in probes.items() if not said.endswith(" 200")
    )
    return result


def _probe(stand: Stand, probes: Counter[str]) -> None:
    for name, metrics in (("http", False), ("metrics port", True)):
        try:
            status = stand.get("/v2/health/live", metrics)[0]
        except OSError as error:
            status = type(error).__name__  # type: ignore[assignment]
        probes[f"{name} {status}"] += 1


def _open(port: int, count: int) -> list[socket.socket]:
    sockets = []
    for _ in range(count):
        with suppress(OSError):
            sockets.append(socket.create_connection(("127.0.0.1", port), timeout=2))
            sockets[-1].setblocking(False)
    return sockets


def _still_open(sock: socket.socket, letter: bytes) -> bool:
    try:
        sock.send(letter)
        return sock.recv(1) != b""
    except BlockingIOError:
        return True
    except OSError:
        return False


def _close(sockets: list[socket.socket]) -> None:
    for sock in sockets:
        sock.close()
