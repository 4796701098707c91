"""Overload and SIGTERM for each server.

The server gets core 0 and this process core 1; the model is the CNN. A server's own capacity is
measured first in each repetition, and loads are multiples of it.
"""

import os
import signal
import statistics
import time
from collections import Counter
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Final

from matplotlib.figure import Figure

from bench.harness import Picture, Report, main, processes
from bench.harness.closed_loop import closed_loop
from bench.harness.load import figures, goodput_rps, ms, poisson
from bench.peers import once, wire
from bench.peers.server import Bench, NotReadyError, Server, Watch, claim, started
from bench.peers.table import PEERS_HOME, Peer, installed, peers, prepare
from interlace.load.connections import ConnectionPool, EncodedCall
from interlace.load.open_loop import UNANSWERED, LoadRun, OpenLoop, percentile

Row = dict[str, Any]
FACTORS = (0.5, 0.75, 1.0, 1.25, 1.5, 2.0, 2.5)
#: Connections a server may be offered; more than its rate times any wait that matters here.
CONNECTIONS = 2000
#: How long a backlog may take to be answered before the next load.
DRAIN_S = 12.0


def capacity_rps(call: EncodedCall, seconds: float = 2.0) -> float:
    """What a closed loop of 32 connections gets through."""
    closed_loop(call, 8, 1.0, 0.0)
    return float(figures(closed_loop(call, 32, seconds))["rps"])


def measure(
    server: Server, call: EncodedCall, capacity: float, seconds: float, slo_ms: float, seed: int
) -> list[Row]:
    """One row per factor, least load first."""
    rows = []
    for number, factor in enumerate(FACTORS):
        arrivals = poisson([capacity * factor], seconds, seed * 100 + number)
        loop = OpenLoop([call], arrivals, CONNECTIONS)
        watch = Watch(server)
        run = loop.run(DRAIN_S)
        rows.append(_point(run, factor, capacity * factor, seconds, slo_ms) | watch.read())
        time.sleep(0.5)
    return rows


def _point(run: LoadRun, factor: float, offered_rps: float, seconds: float, slo_ms: float) -> Row:
    accepted = [s.latency_s for s in run.samples if s.status == 200]
    refused = [s.latency_s for s in run.samples if s.status not in (200, UNANSWERED)]
    return {
        **figures(run),
        "factor": factor,
        "offered_rps": round(offered_rps, 1),
        "goodput_rps": round(goodput_rps(run.samples, slo_ms, seconds), 1),
        "accepted_p50_ms": ms(percentile(accepted, 50)),
        "accepted_p99_ms": ms(percentile(accepted, 99)),
        "accepted_late": sum(latency * 1e3 > slo_ms for latency in accepted),
        "refused": len(refused),
        "refusal_p50_ms": ms(percentile(refused, 50)),
        "refusal_p99_ms": ms(percentile(refused, 99)),
        "by_status": {
            str(status): {
                "count": len(times),
                "p50_ms": ms(percentile(times, 50)),
                "p99_ms": ms(percentile(times, 99)),
            }
            for status, times in _by_status(run).items()
        },
        "unanswered": sum(s.status == UNANSWERED for s in run.samples),
    }


def _by_status(run: LoadRun) -> dict[int, list[float]]:
    """Latencies by status: a refusal on arrival (429) is not one that expired in a queue (504)."""
    found: dict[int, list[float]] = {}
    for sample in run.samples:
        found.setdefault(sample.status, []).append(sample.latency_s)
    return found


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


#: Label and colour of each server that is compared.
CHOSEN: Final = {
    "ours": ("Interlace", "#d1495b"),
    "triton": ("Triton, defaults", "#2e6f95"),
    "triton_queue": ("Triton, queue policy", "#7fb4d6"),
    "mosec": ("mosec", "#3a7d44"),
}
#: A bounded queue sheds a closed loop too, so its capacity is that of the same server without.
SAME_SERVER: Final = {"triton_queue": "triton"}


def overload(
    names: Annotated[tuple[str, ...], "all that are installed if none is named"] = (),
    /,
    *,
    reps: int = 3,
    slo_ms: Annotated[float, "as in repo/cnn/interlace.toml"] = 100.0,
    seconds: Annotated[float, "of each load"] = 3.0,
    home: Annotated[Path, "where the peers are"] = PEERS_HOME,
    nice: int = 0,
    patience_s: Annotated[float, "for a quiet machine before each server"] = 20.0,
) -> Report:
    """All servers and repetitions."""
    claim({1}, nice)
    table = peers(home)
    chosen = names or tuple(name for name in CHOSEN if installed(home, table[name]))
    for name in chosen:
        prepare(home, table[name])
    bench = Bench(home, "0", nice)
    rows: list[Row] = []
    for rep in range(reps):
        capacity: dict[str, float] = {}
        for name in chosen:
            known_rps = capacity.get(SAME_SERVER.get(name, ""), 0.0)
            row = one(name, table[name], bench, known_rps, seconds, slo_ms, rep + 1, patience_s)
            capacity[name] = row.get("capacity_rps", 0.0)
            rows.append({"rep": rep, **row})
            print(line(rows[-1]), flush=True)
    draw = partial(_draw, rows, slo_ms)
    figures = {"slo_ms": slo_ms, "seconds": seconds, "rows": rows}
    pictures = [Picture(draw, (15.0, 4.6), suffix) for suffix in (".svg", ".png")]
    return Report(more=pictures, figures=figures)


def one(
    name: str,
    peer: Peer,
    bench: Bench,
    known_rps: float,
    seconds: float,
    slo_ms: float,
    seed: int,
    patience_s: float,
) -> Row:
    """One repetition of one server; ``known_rps`` is its capacity, or 0 to measure it."""
    proto = peer.protocols["cnn"][0]
    packed = wire.request(name, "cnn", proto).encoded()
    checks = [wire.request(name, model, spoken[0]) for model, spoken in peer.protocols.items()]
    row: Row = {"peer": name}
    try:
        with started(name, peer, bench, checks, patience_s) as server:
            row["capacity_rps"] = known_rps or capacity_rps(packed)
            capacity = row["capacity_rps"]
            row["curve"] = measure(server, packed, capacity, seconds, slo_ms, seed)
            row["memory"] = processes.memory(server.pids())
            row["sigterm"] = stop_under_load(server, packed)
    except (NotReadyError, OSError) as error:
        row["fail"] = str(error)[:500]
    return row


def line(row: Row) -> str:
    """A few lines for the terminal."""
    if "fail" in row:
        return f"{row['peer']}: {row['fail']}"
    lines = [f"{row['peer']} rep {row['rep']}: capacity {row['capacity_rps']} req/s"]
    lines += [
        f"  x{p['factor']}: goodput {p['goodput_rps']} of {p['offered_rps']}, accepted p99 "
        f"{p['accepted_p99_ms']} ms, refused {p['refused']} (p99 {p['refusal_p99_ms']} ms), "
        f"unanswered {p['unanswered']}, others {p['others_cpus']}"
        for p in row["curve"]
    ]
    return "\n".join([*lines, f"  SIGTERM: {row['sigterm']}"])


def points(
    rows: Sequence[Row], peer: str, key: str, scale: bool = False
) -> list[tuple[float, float, float, float]]:
    """Rows of (factor, median, least, greatest) over repetitions; ``scale`` divides by capacity."""
    by_factor: dict[float, list[float]] = {}
    for row in rows:
        for point in row.get("curve", ()) if row["peer"] == peer else ():
            if point[key] is not None:
                value = point[key] / (row["capacity_rps"] if scale else 1)
                by_factor.setdefault(point["factor"], []).append(value)
    return [(f, statistics.median(v), min(v), max(v)) for f, v in sorted(by_factor.items())]


def _draw(rows: Sequence[Row], slo_ms: float, figure: Figure) -> None:
    """Goodput, latency of the accepted, speed of refusals, by offered load."""
    axes = figure.subplots(1, 3)
    panels = (
        ("goodput_rps", f"Replies within {slo_ms:g} ms, as a share of own capacity", True),
        ("accepted_p99_ms", "p99 of accepted requests, ms", False),
        ("refusal_p99_ms", "p99 of refusals, ms", False),
    )
    for axis, (key, title, scale) in zip(axes, panels, strict=True):
        for peer in dict.fromkeys(row["peer"] for row in rows):
            found = points(rows, peer, key, scale)
            if found:
                x, y, low, high = (list(column) for column in zip(*found, strict=True))
                label, colour = CHOSEN.get(peer, (peer, None))
                axis.plot(x, y, "o-", color=colour, label=label, markersize=4)
                axis.fill_between(x, low, high, color=colour, alpha=0.15, linewidth=0)
        axis.set_title(title, fontsize=11)
        axis.set_xlabel("offered load / own capacity")
        axis.grid(alpha=0.25)
        if scale:
            axis.set_ylim(bottom=0)
        else:
            axis.set_yscale("log")
    axes[1].axhline(slo_ms, color="black", linewidth=1, linestyle="--")
    axes[0].legend(frameon=False, fontsize=9)


if __name__ == "__main__":
    main(overload)
