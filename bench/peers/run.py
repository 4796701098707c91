"""Figures of every server, back to back in each repetition: appended to a JSON-lines file.

The server gets core 0 and this process core 1. Per model and protocol: one connection, closed
loop with 32 connections (8 for the image), and Poisson arrivals at half of that closed-loop rate.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from pathlib import Path
from typing import Any

from bench.harness import processes
from bench.peers import bare_torch, models, once, setup, wire
from bench.peers.server import Bench, NotReadyError, Server, Watch
from bench.peers.table import DEFAULT_HOME, Peer, peers
from interlace.load.call import Call, pack
from interlace.load.closed_loop import closed_loop
from interlace.load.open_loop import open_loop
from interlace.load.result import figures

CONNECTIONS = {"echo": 32, "cnn": 32, "img": 8}
Row = dict[str, Any]


def verify(model: str, proto: str, call: Call) -> str:
    """ "ok" if the answer carries what the model computes, else what is wrong with it."""
    status, body = once.ask(call)
    if status != 200:
        return f"status {status}: {body[:200]!r}"
    if model == "cnn" or proto == "json":
        return "ok"
    return "ok" if models.sample(model).tobytes() in body else "different bytes"


def measure(server: Server, call: Call, model: str, args: argparse.Namespace) -> Row:
    """One model over one protocol."""
    packed = pack(call)
    closed_loop(packed, 4, 0.5, 0.0)
    alone = figures(closed_loop(packed, 1, args.alone_s, 0.1))
    watch = Watch(server)
    full = (
        figures(closed_loop(packed, CONNECTIONS[model], args.full_s, 0.3, watch.mark))
        | watch.read()
    )
    half: Row | None = None
    if full["rps"] > 1:
        watch.mark()
        run = open_loop(packed, full["rps"] / 2, args.open_s, seed=args.seed)
        half = figures(run) | watch.read()
    return {"alone": alone, "full": full, "half": half}


def one_peer(name: str, peer: Peer, bench: Bench, args: argparse.Namespace) -> list[Row]:
    """Start a peer, measure everything it speaks, stop it."""
    rows: list[Row] = []
    pairs = [(model, proto) for model, all_ in peer.protocols.items() for proto in all_]
    calls = {pair: wire.request(name, *pair) for pair in pairs}
    processes.wait_quiet(args.patience_s)
    server = Server(name, peer, bench)
    idle: Row = {}
    try:
        server.wait_ready(list(calls.values()))
        idle = processes.memory(server.pids())
        for (model, proto), call in calls.items():
            row = {
                "peer": name,
                "model": model,
                "proto": proto,
                "verify": verify(model, proto, call),
            }
            row |= measure(server, call, model, args)
            rows.append(row)
            print(_line(row), flush=True)
    except NotReadyError as error:
        rows.append({"peer": name, "fail": str(error)[:500]})
        print(f"{name}: {error}", flush=True)
    finally:
        loaded = processes.memory(server.pids())
        stop = server.stop()
    if server.startup_s:
        rows.append(
            {"peer": name, "startup_s": round(server.startup_s, 2), "idle": idle, "loaded": loaded,
             "stop": stop}
        )  # fmt: skip
    return rows


def _line(row: Row) -> str:
    alone, full, half = row["alone"], row["full"], row["half"] or {}
    return (
        f"{row['peer']:10} {row['model']:4} {row['proto']:4} {row['verify']:3} "
        f"alone {alone['p50_ms']}/{alone['p99_ms']} ms, full {full['rps']} req/s "
        f"(client {full['client_busy']}, others {full['others_cpus']}), "
        f"half {half.get('p50_ms')}/{half.get('p99_ms')} ms {full['statuses']}"
    )


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("peers", nargs="*", help="default: all that are installed")
    parser.add_argument("--reps", type=int, default=3)
    parser.add_argument("--out", type=Path, default=Path("build/bench/peers.jsonl"))
    parser.add_argument("--home", type=Path, default=DEFAULT_HOME, help="where the peers are")
    parser.add_argument("--alone-s", type=float, default=1.2)
    parser.add_argument("--full-s", type=float, default=1.8)
    parser.add_argument("--open-s", type=float, default=1.8)
    parser.add_argument("--nice", type=int, default=0, help="of server and client")
    quiet = "seconds to wait for a quiet machine before each server"
    parser.add_argument("--patience-s", type=float, default=20.0, help=quiet)
    return parser.parse_args()


def main() -> None:
    """All repetitions."""
    args = arguments()
    os.sched_setaffinity(0, {1})
    os.nice(args.nice)
    processes.raise_priority("self", args.nice)
    table = peers(args.home)
    names = args.peers or [name for name, peer in table.items() if setup.installed(args.home, peer)]
    for name in names:
        setup.prepare(args.home, table[name])
    args.out.parent.mkdir(parents=True, exist_ok=True)
    bench = Bench(args.home, "0", args.nice)
    for rep in range(args.reps):
        args.seed = rep + 1
        bare = _bare()
        with args.out.open("a") as out:
            out.write(json.dumps({"rep": rep, "bare_torch": bare}) + "\n")
            for name in names:
                for row in one_peer(name, table[name], bench, args):
                    out.write(json.dumps({"rep": rep, "time": time.time(), **row}) + "\n")
                out.flush()


def _bare() -> Row:
    """The CNN without a server, on the core that servers get."""
    import subprocess
    import sys

    command = [sys.executable, "-m", bare_torch.__name__, "--batches", "1", "16", "--core", "0"]
    text = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    figures_: Row = json.loads(text)
    print(f"bare torch {figures_}", flush=True)
    return figures_


if __name__ == "__main__":
    main()
