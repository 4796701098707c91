"""Real models together on both cores, Poisson arrivals, an SLO each: who answers most in time.

Every server is offered the same arrivals: each model gets an equal share of the work that two
cores could do one request at a time, times the load. Server and client share both cores, the
client at a higher priority. Writes mix.json, .png and .svg.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
from pathlib import Path
from typing import Any

from bench.harness import processes
from bench.mix import models, peers, plot
from bench.peers import setup
from bench.peers.server import Bench, NotReadyError, Server, Watch
from bench.peers.table import DEFAULT_HOME
from interlace.load.call import pack
from interlace.load.open_loop import OpenLoop
from interlace.load.result import UNANSWERED, LoadRun, ms, percentile
from interlace.load.send_times import poisson

Row = dict[str, Any]
LOADS = (0.4, 0.7, 1.0, 1.4)
CORES = 2
CONNECTIONS = 1500
DRAIN_S = 3.0


def costs_ms(home: Path) -> dict[str, float]:
    """What one request of each model costs alone on one core, measured now, in a peer's Python."""
    command = [str(home / "pytriton" / "bin" / "python"), "cost.py", "--seconds", "1.0"]
    done = subprocess.run(command, cwd=peers.HERE, capture_output=True, text=True, check=True)
    return {name: by_batch["1"] for name, by_batch in json.loads(done.stdout).items()}


def rates_rps(costs: dict[str, float], load: float) -> list[float]:
    """Rates at which each model costs the same share of ``load`` times both cores."""
    return [load * CORES * 1e3 / len(models.SORTS) / costs[sort.name] for sort in models.SORTS]


def one_load(server: Server, load: float, costs: dict[str, float], args: argparse.Namespace) -> Row:
    """One load on a running server; the first ``warm_s`` seconds do not count."""
    seconds = args.warm_s + args.seconds
    rates = rates_rps(costs, load)
    calls = [pack(peers.request(server.name, sort)) for sort in models.SORTS]
    loop = OpenLoop(calls, poisson(rates, seconds, args.seed * 100 + int(load * 10)), CONNECTIONS)
    watch = Watch(server)
    run = loop.run(DRAIN_S)
    counted = [s for s in run.samples if s.due_s >= args.warm_s]
    per_model = {
        sort.name: _model_row(run._replace(samples=[s for s in counted if s.tag == tag]), sort.name)
        for tag, sort in enumerate(models.SORTS)
    }
    within = {name: row["within_slo"] for name, row in per_model.items()}
    offered = {name: row["offered"] for name, row in per_model.items()}
    return {
        "load": load,
        "goodput_rps": round(sum(within.values()) / args.seconds, 2),
        "offered_rps": round(sum(offered.values()) / args.seconds, 2),
        "work_goodput": round(sum(within[n] * costs[n] for n in within) / args.seconds / 1e3, 4),
        "work_offered": round(sum(offered[n] * costs[n] for n in within) / args.seconds / 1e3, 4),
        "worst_attainment": min(row["attainment"] for row in per_model.values()),
        "mean_attainment": round(sum(r["attainment"] for r in per_model.values()) / len(within), 4),
        "client_busy": round(run.busy, 3),
        "models": per_model,
        **watch.read(),
    }


def _model_row(run: LoadRun, name: str) -> Row:
    slo = models.slo_ms(name)
    good = [s.latency_s for s in run.samples if s.status == 200]
    within = sum(latency * 1e3 <= slo for latency in good)
    refused = [s.latency_s for s in run.samples if s.status not in (200, UNANSWERED)]
    return {
        "slo_ms": slo,
        "offered": len(run.samples),
        "within_slo": within,
        "attainment": round(within / max(1, len(run.samples)), 4),
        "late": len(good) - within,
        "refused": len(refused),
        "unanswered": len(run.samples) - len(good) - len(refused),
        "p50_ms": ms(percentile(good, 50)),
        "p99_ms": ms(percentile(good, 99)),
        "refusal_p99_ms": ms(percentile(refused, 99)),
    }


def one_peer(
    name: str, costs: dict[str, float], bench: Bench, args: argparse.Namespace
) -> list[Row]:
    """Every load on one start of one server."""
    rows: list[Row] = []
    processes.wait_quiet(args.patience_s)
    server = Server(name, peers.peer(name, bench.home), bench)
    try:
        server.wait_ready([peers.request(name, sort) for sort in models.SORTS], limit_s=600)
        for load in args.loads:
            row = {"peer": name, "seed": args.seed, **one_load(server, load, costs, args)}
            row |= {"startup_s": round(server.startup_s, 2)}
            rows.append(row)
            print(_line(row), flush=True)
        rows[-1]["memory"] = processes.memory(server.pids())
    except NotReadyError as error:
        rows.append({"peer": name, "seed": args.seed, "fail": str(error)[:500]})
        print(rows[-1], flush=True)
    finally:
        server.stop()
    return rows


def _line(row: Row) -> str:
    each = " ".join(f"{name} {r['attainment']:.2f}" for name, r in row["models"].items())
    return (
        f"{row['peer']:11} x{row['load']}: {row['goodput_rps']} of {row['offered_rps']} req/s, "
        f"work {row['work_goodput']} of {row['work_offered']}, others {row['others_cpus']} | {each}"
    )


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("peers", nargs="*", help=f"default: {' '.join(peers.NAMES)}")
    parser.add_argument("--out", type=Path, default=Path("build/bench/mix"))
    parser.add_argument("--reps", type=int, default=3)
    parser.add_argument("--loads", type=float, nargs="*", default=list(LOADS))
    parser.add_argument("--seconds", type=float, default=8.0)
    parser.add_argument("--warm-s", type=float, default=4.0)
    parser.add_argument("--home", type=Path, default=DEFAULT_HOME)
    parser.add_argument("--client-nice", type=int, default=-10)
    quiet = "seconds to wait for a quiet machine before each server"
    parser.add_argument("--patience-s", type=float, default=20.0, help=quiet)
    return parser.parse_args()


def main() -> None:
    """All repetitions, then the plot."""
    args = arguments()
    resource.setrlimit(resource.RLIMIT_NOFILE, (16384, 16384))
    os.nice(args.client_nice)
    processes.raise_priority("self", args.client_nice)
    bench = Bench(args.home, "0,1", 0)
    names = args.peers or list(peers.NAMES)
    missing = [
        n for n in names if n != "ours" and not setup.installed(args.home, peers.peer(n, args.home))
    ]
    if missing:
        raise SystemExit(f"not installed: {missing}; run scripts/peers-setup triton pytriton mosec")
    for name in names:
        setup.prepare(args.home, peers.peer(name, args.home))
    args.out.mkdir(parents=True, exist_ok=True)
    costs = costs_ms(args.home)
    print(
        "ms per request alone:", {name: round(cost, 2) for name, cost in costs.items()}, flush=True
    )
    rows: list[Row] = []
    for seed in range(1, args.reps + 1):
        args.seed = seed
        for name in names:
            rows += one_peer(name, costs, bench, args)
            result = {"costs_ms": costs, "seconds": args.seconds, "rows": rows}
            result["summary"] = plot.summary(rows)
            (args.out / "mix.json").write_text(json.dumps(result, indent=1) + "\n")
    plot.draw(args.out)
    print(json.dumps(result["summary"], indent=1))


if __name__ == "__main__":
    main()
