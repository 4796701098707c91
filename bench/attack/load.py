"""Too much of what is allowed: connections, letters that are slow, large bodies, requests."""

import gzip
import http.client
import json
import socket
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, Final, NamedTuple

from bench.attack.attack import SLOW, WIDE, WIDE_NUMBERS, Ground, Result, grown
from bench.attack.calls import HttpCaller, body
from bench.attack.stand import Stand
from bench.attack.traffic import Traffic
from bench.harness.closed_loop import closed_loop
from interlace.load.call import Call, pack
from interlace.load.open_loop import OpenLoop, poisson
from interlace.load.result import LoadRun, figures, goodput_rps, ms, percentile


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
    _close_all(sockets)
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
    _close_all(sockets)
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


def _close_all(sockets: list[socket.socket]) -> None:
    for sock in sockets:
        sock.close()


_GIVEN_BACK_S: Final = 90.0
_KEPT_MB: Final = 80.0


class Body(NamedTuple):
    """A body to be sent again and again over some connections at once, and what it deserves.

    Where there is too much at once, 429 and 503 are right for all of them.
    """

    data: bytes
    encoding: str
    connections: int
    status: int


def large_json(ground: Ground, stand: Stand) -> Result:
    """15.9 MB of numbers, more than the input takes, over one and four connections."""
    numbers = b",".join([b"1"] * 8_000_000)
    wrong = _named_body(numbers[:15_900_000].rstrip(b","), [1, WIDE_NUMBERS])
    return _send_bodies(ground, stand, [Body(wrong, "", 1, 400), Body(wrong, "", 4, 400)])


def honest_json(ground: Ground, stand: Stand) -> Result:
    """One row of 614,400 numbers in 6 MB of JSON, which is served, over one connection."""
    right = _named_body(b",".join([b"0.1234567"] * WIDE_NUMBERS), [1, WIDE_NUMBERS])
    return _send_bodies(ground, stand, [Body(right, "", 1, 200)])


def gzip_bombs(ground: Ground, stand: Stand) -> Result:
    """58 KB that unpack to 60 MB over four connections; 243 KB to 250 MB over thirty-two."""
    small = gzip.compress(_named_body(b"1" + b" " * 60_000_000, [1, WIDE_NUMBERS]), 9)
    large = gzip.compress(_named_body(b"1" + b" " * 250_000_000, [1, WIDE_NUMBERS]), 9)
    return _send_bodies(ground, stand, [Body(small, "gzip", 4, 413), Body(large, "gzip", 32, 413)])


def _named_body(numbers: bytes, shape: list[int]) -> bytes:
    head = b'{"inputs":[{"name":"x","datatype":"FP32","shape":%s,"data":['
    return head % json.dumps(shape).encode() + numbers + b"]}]}"


def _send_bodies(ground: Ground, stand: Stand, bodies: Sequence[Body]) -> Result:
    before = stand.held()
    statuses: Counter[str] = Counter()
    for one in bodies:
        end_s = time.monotonic() + ground.scale * 8.0
        _at_once(one.connections, partial(_repeat, stand, one, end_s, statuses))
    given_back_s, after = _given_back_s(stand, before), stand.held()
    result = Result(statuses.total(), figures={"statuses": dict(statuses)})
    right = {*(str(one.status) for one in bodies), "413", "429", "503", "504"}
    for status, count in statuses.items():
        result.broken[status] += count * (status.isdigit() and status not in right)
    result.broken["kept after a minute and a half"] += given_back_s is None
    result.figures |= grown(before, after, "pss_mb")
    result.figures["given_back_s"] = given_back_s
    return result


def _given_back_s(stand: Stand, before: dict[str, float]) -> float | None:
    """Seconds until the server holds about what it held before; the process for bodies may stay."""
    began_s = time.monotonic()
    while (gone_s := time.monotonic() - began_s) < _GIVEN_BACK_S:
        if stand.held()["pss_mb"] - before["pss_mb"] < _KEPT_MB:
            return round(gone_s, 1)
        time.sleep(1.0)
    return None


def _repeat(stand: Stand, one: Body, end_s: float, statuses: Counter[str]) -> None:
    caller = HttpCaller(stand.http_port, 60.0)
    headers = {"Content_Encoding": one.encoding} if one.encoding else {}
    while time.monotonic() < end_s:
        try:
            status, _ = caller.post(f"/v2/models/{WIDE.model}/infer", one.data, **headers)
            statuses[str(status)] += 1
        except (OSError, http.client.HTTPException) as error:
            # Answered and closed before all of it was sent, which is a refusal too.
            statuses[type(error).__name__] += 1
    caller.close()


def _at_once(count: int, act: Callable[[], None]) -> None:
    threads = [threading.Thread(target=act, daemon=True) for _ in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)


_SLO_MS = 100.0
_CONNECTIONS = 300


def overload(ground: Ground, stand: Stand) -> Result:
    """Goodput keeps most of the peak; refusals are quick; the first good answer comes at once."""
    data = body([1.0, 2.0, 3.0, 4.0])
    wire = Call("http", stand.http_port, f"/v2/models/{SLOW.model}/infer", data)
    call = pack(wire)
    peak_rps = float(figures(closed_loop(call, 8, ground.scale * 5.0, 1.0))["rps"])
    result = Result(0, figures={"peak_rps": peak_rps})
    before = stand.held()
    for factor in (2.0, 10.0):
        seconds = ground.scale * 12.0
        arrivals = poisson([peak_rps * factor], seconds, ground.seed)
        run = OpenLoop([call], arrivals, _CONNECTIONS).run(10.0)
        ended_s = time.monotonic()
        result.tried += len(run.samples)
        found = _figures(run, peak_rps, seconds)
        found["back_s"] = _back_s(stand, ended_s)
        result.figures[f"x{factor:g}"] = found
        result.broken["unanswered"] += found["unanswered"]
    result.figures |= grown(before, stand.held(), "pss_mb")
    return result


def _figures(run: LoadRun, peak_rps: float, seconds: float) -> dict[str, Any]:
    good = [s.latency_s for s in run.samples if s.status == 200]
    refused = [s.latency_s for s in run.samples if s.status in (429, 503, 504)]
    return {
        "goodput_of_peak": round(goodput_rps(run.samples, _SLO_MS, seconds) / peak_rps, 3),
        "accepted_p99_ms": ms(percentile(good, 99)),
        "refusal_p50_ms": ms(percentile(refused, 50)),
        "refusal_p99_ms": ms(percentile(refused, 99)),
        "unanswered": sum(s.status < 0 for s in run.samples),
    }


def _back_s(stand: Stand, ended_s: float) -> float | None:
    """Seconds to the first good answer after the load has ended."""
    with Traffic((stand.http_port, 0), [SLOW], (1, 0)) as traffic:
        while traffic.first_good_after_s(ended_s) is None and time.monotonic() - ended_s < 20:
            time.sleep(0.01)
    return traffic.first_good_after_s(ended_s)
