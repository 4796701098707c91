"""Real models together on both cores, Poisson arrivals, an SLO each: who answers most in time.

Every server is offered the same arrivals: each model gets an equal share of the work that two
cores could do one request at a time, times the load. Server and client share both cores, the
client at a higher priority.
"""

import multiprocessing
import os
import statistics
import time
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Annotated, Any, Final

from bench.harness import Report, Table, main, processes, spread
from bench.harness.load import ms, poisson
from bench.mix import peers
from bench.peers import models, wire
from bench.peers.server import Bench, NotReadyError, Server, Watch, claim, started
from bench.peers.table import PEERS_HOME, installed, prepare
from interlace.load.open_loop import UNANSWERED, LoadRun, OpenLoop, percentile

Row = dict[str, Any]
LOADS = (0.4, 0.7, 1.0, 1.4)
CORES = 2
CONNECTIONS = 1500
DRAIN_S = 3.0
#: Seconds at the beginning of each load that do not count.
WARM_S = 4.0
MEASURES: Final = ("goodput_rps", "work_goodput", "worst_attainment", "mean_attainment")


def mix(
    names: Annotated[tuple[str, ...], "servers and tunings"] = peers.NAMES,
    /,
    *,
    reps: int = 3,
    loads: Annotated[tuple[float, ...], "offered work over both cores"] = LOADS,
    seconds: Annotated[float, "of each load"] = 8.0,
    home: Annotated[Path, "where the peers are"] = PEERS_HOME,
    client_nice: int = -10,
    patience_s: Annotated[float, "for a quiet machine before each server"] = 20.0,
) -> Report:
    """All servers, loads and repetitions."""
    missing = [n for n in names if n != "ours" and not installed(home, peers.peer(n, home))]
    if missing:
        raise SystemExit(f"not installed: {missing}; run scripts/peers-setup triton pytriton mosec")
    claim(set(), client_nice)
    for name in names:
        prepare(home, peers.peer(name, home))
    costs = costs_ms()
    print("ms per request alone:", {n: round(cost, 2) for n, cost in costs.items()}, flush=True)
    rows: list[Row] = []
    for seed in range(1, reps + 1):
        for name in names:
            bench = Bench(home, "0,1", 0)
            rows += one_peer(name, costs, bench, loads, seconds, seed, patience_s)
    good = [row for row in rows if "fail" not in row]
    figures = {"costs_ms": costs, "seconds": seconds, "rows": rows}
    tables = [table(good, measure) for measure in MEASURES]
    return Report(tables=tables, figures=figures)


def table(rows: Sequence[Row], measure: str) -> Table:
    """Medians by server and load; ours over the best peer, whatever its tuning."""
    loads = sorted({row["load"] for row in rows})
    cells: list[list[str | None]] = []
    for peer in dict.fromkeys(row["peer"] for row in rows):
        each = [[r[measure] for r in rows if (r["peer"], r["load"]) == (peer, x)] for x in loads]
        cells.append([peer, *(f"{statistics.median(one):.3f}" if one else None for one in each)])
    ratios = [ratio([row for row in rows if row["load"] == load], measure) for load in loads]
    return Table((measure, *map(str, loads)), [*cells, ["ours over the best peer", *ratios]])


def ratio(rows: Sequence[Row], measure: str) -> str | None:
    """Ours over the best peer in each repetition."""
    found = []
    for seed in {row["seed"] for row in rows}:
        ours = [r[measure] for r in rows if r["seed"] == seed and r["peer"] == "ours"]
        best = [r[measure] for r in rows if r["seed"] == seed and r["peer"] != "ours"]
        if ours and best and max(best) > 0:
            found.append(max(ours) / max(best))
    over = spread(found)
    return over.text() if over else None


def costs_ms() -> dict[str, float]:
    """What one request of each model costs alone on one core, measured now, in another process."""
    spawn = multiprocessing.get_context("spawn")
    names = [sort.name for sort in models.MIX]
    with ProcessPoolExecutor(1, spawn) as alone:
        return dict(zip(names, alone.map(cost_ms, names), strict=True))


def cost_ms(name: str, seconds: float = 1.0) -> float:
    """A model's median over that many seconds, and three runs at least, on core 0."""
    os.sched_setaffinity(0, {0})
    run, inputs = models.load(name, 1), models.sample(name)
    times_ms: list[float] = []
    end_s = time.perf_counter() + seconds
    while time.perf_counter() < end_s or len(times_ms) < 3:
        began_s = time.perf_counter()
        run(inputs)
        times_ms.append((time.perf_counter() - began_s) * 1e3)
    return statistics.median(times_ms)


def rates_rps(costs: dict[str, float], load: float) -> list[float]:
    """Rates at which each model costs the same share of ``load`` times both cores."""
    return [load * CORES * 1e3 / len(models.MIX) / costs[sort.name] for sort in models.MIX]


def one_load(
    server: Server, load: float, costs: dict[str, float], seconds: float, seed: int
) -> Row:
    """One load on a running server."""
    rates = rates_rps(costs, load)
    calls = [wire.request(server.name, sort.name).encoded() for sort in models.MIX]
    loop = OpenLoop(
        calls, poisson(rates, WARM_S + seconds, seed * 100 + int(load * 10)), CONNECTIONS
    )
    watch = Watch(server)
    run = loop.run(DRAIN_S)
    counted = [s for s in run.samples if s.due_s >= WARM_S]
    per_model = {
        sort.name: _model_row(run._replace(samples=[s for s in counted if s.tag == tag]), sort.name)
        for tag, sort in enumerate(models.MIX)
    }
    within = {name: row["within_slo"] for name, row in per_model.items()}
    offered = {name: row["offered"] for name, row in per_model.items()}
    return {
        "load": load,
        "goodput_rps": round(sum(within.values()) / seconds, 2),
        "offered_rps": round(sum(offered.values()) / seconds, 2),
        "work_goodput": round(sum(within[n] * costs[n] for n in within) / seconds / 1e3, 4),
        "work_offered": round(sum(offered[n] * costs[n] for n in within) / seconds / 1e3, 4),
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
    name: str,
    costs: dict[str, float],
    bench: Bench,
    loads: Sequence[float],
    seconds: float,
    seed: int,
    patience_s: float,
) -> list[Row]:
    """Every load on one start of one server."""
    rows: list[Row] = []
    checks = [wire.request(name, sort.name) for sort in models.MIX]
    try:
        with started(name, peers.peer(name, bench.home), bench, checks, patience_s, 600) as server:
            for load in loads:
                row = {"peer": name, "seed": seed, **one_load(server, load, costs, seconds, seed)}
                rows.append(row | {"startup_s": round(server.startup_s, 2)})
                print(_line(rows[-1]), flush=True)
            rows[-1]["memory"] = processes.memory(server.pids())
    except NotReadyError as error:
        rows.append({"peer": name, "seed": seed, "fail": str(error)[:500]})
        print(rows[-1], flush=True)
    return rows


def _line(row: Row) -> str:
    each = " ".join(f"{name} {r['attainment']:.2f}" for name, r in row["models"].items())
    return (
        f"{row['peer']:11} x{row['load']}: {row['goodput_rps']} of {row['offered_rps']} req/s, "
        f"work {row['work_goodput']} of {row['work_offered']}, others {row['others_cpus']} | {each}"
    )


if __name__ == "__main__":
    main(mix)
