"""Simulated against live on this machine: `python -m bench.fidelity.run --out FOLDER`.

Profiles and the slowdown of busy neighbours are measured first, the machine's speed of the moment
around each run; then every system meets every load
and SLO, once on the cores and once in virtual time with the same plan and the same trace. Nothing
of the runs is used to tune the model. A load of 1 is the work that both cores do at best, each at
its batch of highest throughput, in equal parts for each model. A repetition of the live run says
how well a run agrees with itself.
"""

from __future__ import annotations

import argparse
import asyncio
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from bench.fidelity.gaps import figures, gap
from bench.fidelity.live import play
from bench.fidelity.measured import Measured, half_pct, measure
from bench.fidelity.stand import Stand
from bench.fidelity.truth import at_the_moment, busy, simulated_device
from bench.fidelity.twin import sent, twin
from interlace.core.hardware import Fleet
from interlace.core.plan import Demand, Plan
from interlace.core.profile import Profile
from interlace.policy.catalog import resolve as row
from interlace.profiling.sweep import SweepSettings
from interlace.sim.arrivals import merge_arrivals
from interlace.sim.workload.renewal import poisson

MODELS: Final = ("cnn_small", "cnn_large", "embedder")
_SYSTEMS: Final = ("interlace", "gpulet", "temporal", "gslice")
_HALF_PCT: Final = 50
#: SLO over the latency of one row on half the cores, for each model.
_SLO_FACTORS: Final = (4.0, 12.0)
#: A run and its repetition agree if goodput and median differ by no more than this; else the
#: machine was disturbed, and both are made again, so often at most.
_AGREE: Final = 0.05
_TAKES: Final = 3


@dataclass(frozen=True, slots=True)
class Case:
    """One run: a system at a load and SLOs of that many executions."""

    system: str
    load: float
    slo_factor: float


def cases(
    systems: Sequence[str], loads: Sequence[float], slo_factors: Sequence[float] = _SLO_FACTORS
) -> Iterator[Case]:
    """Every system at every load with tight and with loose SLOs."""
    for slo_factor in slo_factors:
        for load in loads:
            for system in systems:
                yield Case(system, load, slo_factor)


def demand(profiles: Mapping[str, Profile], case: Case) -> tuple[Demand, ...]:
    """Equal parts of the machine's work for each model, times the load."""
    found = []
    for key, profile in profiles.items():
        half = {batch: p.median_ms for (batch, share), p in profile.points.items() if share == 50}
        row_ms = min(ms / batch for batch, ms in half.items())
        rate_rps = case.load * 2 * 1000.0 / row_ms / len(profiles)
        slo_ms = case.slo_factor * half[1]
        found.append(Demand(key, rate_rps, slo_ms, max(half)))
    return tuple(found)


async def compare(stand: Stand, measured: Measured, case: Case, seconds: float) -> dict[str, Any]:
    """One case twice live and once simulated; taken again while the live runs disagree.

    Which take is kept depends on the live runs alone.
    """
    takes = []
    for _ in range(_TAKES):
        takes.append(await _take(stand, measured, case, seconds))
        if _apart(takes[-1]) <= _AGREE:
            break
    return {**min(takes, key=_apart), "takes": len(takes)}


def _apart(take: Mapping[str, Any]) -> float:
    """How far a run is from its repetition."""
    return max(abs(take["live_again"]["goodput"]), abs(take["live_again"]["p50"]))


async def _take(stand: Stand, measured: Measured, case: Case, seconds: float) -> dict[str, Any]:
    asked = demand(measured.profiles, case)
    fleet, system = Fleet((stand.device.gpu,)), row(case.system)
    plan = system.planner(asked, fleet, measured.profiles, Plan())
    arrivals = merge_arrivals(
        {one.model: poisson(one.rows_per_s) for one in asked}, seconds, seed=1
    )
    looks, lives = [await busy(stand)], []
    for _ in range(2):
        lives.append(await play(stand, system, plan, asked, measured.profiles, arrivals))
        looks.append(await busy(stand))
    simulated = twin(
        system,
        fleet,
        plan,
        asked,
        measured.profiles,
        at_the_moment(measured, looks, half_pct(stand.device.gpu)),
        sent(lives[0], arrivals.models, seconds),
        simulated_device(measured),
    )
    seen, again, first = (figures(one) for one in (*lives, simulated))
    return {
        **asdict(case),
        "live": asdict(seen),
        "simulated": asdict(first),
        "gap": asdict(gap(seen, first)),
        "live_again": asdict(gap(seen, again)),
    }


async def _all(out: Path, chosen: Sequence[Case], seconds: float) -> None:
    rows: list[dict[str, Any]] = []
    async with Stand(Path("models"), MODELS) as stand:
        measured = await measure(stand, SweepSettings(samples=150, budget_s=1.0, retakes=4))
        print({f"{a}|{b}": round(f, 3) for (a, b), f in measured.pairs.factors.items()})
        for number, case in enumerate(chosen, 1):
            rows.append(await compare(stand, measured, case, seconds))
            print(f"{number}/{len(chosen)}", json.dumps(_rounded(rows[-1])), flush=True)
            out.mkdir(parents=True, exist_ok=True)
            (out / "fidelity.json").write_text(json.dumps(rows, indent=1))


def _rounded(row: Mapping[str, Any]) -> dict[str, Any]:
    return {
        key: {k: round(v, 3) for k, v in value.items()} if isinstance(value, dict) else value
        for key, value in row.items()
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("build/bench/fidelity"))
    parser.add_argument("--seconds", type=float, default=15.0)
    parser.add_argument("--systems", nargs="+", default=list(_SYSTEMS))
    parser.add_argument("--loads", nargs="+", type=float, default=[0.3, 0.7, 1.0, 1.5])
    parser.add_argument("--slos", nargs="+", type=float, default=list(_SLO_FACTORS))
    asked = parser.parse_args()
    chosen = list(cases(asked.systems, asked.loads, asked.slos))
    asyncio.run(_all(asked.out, chosen, asked.seconds))


if __name__ == "__main__":
    main()
