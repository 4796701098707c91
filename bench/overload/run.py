"""Overload, wrong requests and SIGTERM for each server; writes overload.json, .png and .svg.

The server gets core 0 and this process core 1; the model is the CNN. A server's own capacity is
measured first in each repetition, and loads are multiples of it.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
from pathlib import Path
from typing import Any

from bench.harness import processes
from bench.overload import curve, malformed, plot, sigterm
from bench.peers import setup, wire
from bench.peers.server import Bench, NotReadyError, Server
from bench.peers.table import DEFAULT_HOME, Peer, peers
from interlace.load.call import pack

Row = dict[str, Any]
CHOSEN = ("ours", "triton", "triton_queue", "mosec", "torchserve")


#: A bounded queue sheds a closed loop too, so its capacity is that of the same server without.
SAME_SERVER = {"triton_queue": "triton"}


def one(name: str, peer: Peer, bench: Bench, args: argparse.Namespace, known_rps: float) -> Row:
    """One repetition of one server; ``known_rps`` is its capacity, or 0 to measure it."""
    proto = peer.protocols["cnn"][0]
    call = wire.request(name, "cnn", proto)
    row: Row = {"peer": name, "rep": args.rep}
    processes.wait_quiet(args.patience_s)
    server = Server(name, peer, bench)
    try:
        server.wait_ready(
            [wire.request(name, model, peer.protocols[model][0]) for model in peer.protocols]
        )
        packed = pack(call)
        row["capacity_rps"] = known_rps or curve.capacity_rps(packed, args.capacity_s)
        row["curve"] = curve.measure(
            server, packed, row["capacity_rps"], args.seconds, args.slo_ms, args.rep + 1
        )
        row["memory"] = processes.memory(server.pids())
        row["malformed"] = malformed.ask_all(name, proto)
        row["sigterm"] = sigterm.stop_under_load(server, packed)
    except (NotReadyError, OSError) as error:
        row["fail"] = str(error)[:500]
    finally:
        server.stop()
    return row


def report(row: Row) -> str:
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


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("peers", nargs="*", default=[], help=f"default: {' '.join(CHOSEN)}")
    parser.add_argument("--out", type=Path, default=Path("build/bench/overload"))
    parser.add_argument("--reps", type=int, default=3)
    parser.add_argument("--slo-ms", type=float, default=100.0, help="as in repo/cnn/interlace.toml")
    parser.add_argument("--seconds", type=float, default=3.0, help="of each load")
    parser.add_argument("--capacity-s", type=float, default=2.0)
    parser.add_argument("--home", type=Path, default=DEFAULT_HOME)
    parser.add_argument("--nice", type=int, default=0)
    quiet = "seconds to wait for a quiet machine before each server"
    parser.add_argument("--patience-s", type=float, default=20.0, help=quiet)
    return parser.parse_args()


def main() -> None:
    """All servers and repetitions, then the plot."""
    args = arguments()
    resource.setrlimit(resource.RLIMIT_NOFILE, (16384, 16384))
    os.sched_setaffinity(0, {1})
    os.nice(args.nice)
    processes.raise_priority("self", args.nice)
    table = peers(args.home)
    bench = Bench(args.home, "0", args.nice)
    names = args.peers or [n for n in CHOSEN if setup.installed(args.home, table[n])]
    for name in names:
        setup.prepare(args.home, table[name])
    args.out.mkdir(parents=True, exist_ok=True)
    rows: list[Row] = []
    for rep in range(args.reps):
        args.rep = rep
        found: dict[str, float] = {}
        for name in names:
            known = found.get(SAME_SERVER.get(name, ""), 0.0)
            rows.append(one(name, table[name], bench, args, known))
            found[name] = rows[-1].get("capacity_rps", 0.0)
            print(report(rows[-1]), flush=True)
            result = {"slo_ms": args.slo_ms, "seconds": args.seconds, "rows": rows}
            (args.out / "overload.json").write_text(json.dumps(result, indent=1) + "\n")
    plot.draw(args.out)


if __name__ == "__main__":
    main()
