"""Shares that change and weights that are shared: Figure 8 and Table 2."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Final, NamedTuple

import numpy as np
from matplotlib.figure import Figure
from numpy.typing import NDArray

from bench.harness import COLOURS, Report, Row
from bench.papers.primitives import v100
from interlace.core.gpu_kinds import GPU_KINDS
from interlace.core.hardware import Fleet, Gpu, Trait
from interlace.core.messages import CreatePartition, Load, WorkFinished
from interlace.core.plan import Demand, Partition, Plan, Slot
from interlace.core.profile import LatencyPoint, Profile, Profiles
from interlace.core.request import Outcome
from interlace.device.simulated.device import SimulatedDevice, device_factory
from interlace.device.simulated.physics import MECHANISMS, MechanismCosts, Physics
from interlace.perf.latency import surface
from interlace.policy.catalog import resolve
from interlace.policy.scaling import grow_and_shrink
from interlace.runtime.clock import SimClock
from interlace.sim.arrivals import merge_arrivals
from interlace.sim.record import RunRecord
from interlace.sim.run import simulate
from interlace.sim.scenario import Reserve, Simulation
from interlace.sim.workload.parse import Steps

MODEL: Final = "resnet50"
SLO_MS: Final = 100.0
MOST_ROWS: Final = 32
MARGIN: Final = 1.1
SECONDS: Final = 12.0
_PERIOD_MS: Final = 500.0
_BIN_MS: Final = 200.0
SWITCH_MS: Final = MECHANISMS["mps"].hand_over_ms
_COSTS: Final = MechanismCosts(carve_ms=0.0, release_ms=1.0, hand_over_ms=SWITCH_MS)


def figure8() -> Report:
    """Figure 8: ResNet-50 on a V100 as its rate rises from 520 to 680/s, its share from 40 to 50 %.

    Baseline (no change), change without overlap (the old process ends, then the new one loads for 3
    s), and with overlapped execution. The rate rises after 3 s; the engine sees it, plans the least
    share that serves a tenth more, and moves. Loading takes the paper's 3 s and the switch
    D-STACK's 0.1 ms: both are put in. What comes out is when the change is seen, which shares are
    chosen from the logs' latencies, and whether anything else is lost on the way.

    Left open: the SLO (100 ms), the largest batch (32), how often rates are looked at (every 0.5 s;
    three samples are waited for).
    """
    runs = {
        "baseline": run(True, fixed=True),
        "without overlap": run(False),
        "overlapped": run(True),
    }
    found = {name: seen(record) for name, record in runs.items()}
    base, plain, overlapped = found.values()
    before, after = v100.FIGURE_8_SHARES_PCT
    down = "longest time without service"
    shares = overlapped.shares_pct
    rows = [
        Row("share before the change", before, shares[0], " %"),
        Row("share after it", after, shares[-1], " %"),
        Row("baseline: images at the end", None, base.after_rps, " /s"),
        Row(f"without overlap: {down}", v100.PLAIN_DOWNTIME_MS, plain.down_ms, " ms"),
        Row("without overlap: images at the end", v100.FIGURE_8_RPS[1], plain.after_rps, " /s"),
        Row(f"overlapped: {down}", None, overlapped.down_ms, " ms"),
        Row("overlapped: and the switch (put in)", v100.OVERLAPPED_DOWNTIME_MS, SWITCH_MS, " ms"),
        Row("overlapped: images at the end", v100.FIGURE_8_RPS[1], overlapped.after_rps, " /s"),
        *(Row(f"{name}: requests given up", None, one.lost) for name, one in found.items()),
    ]

    def draw(figure: Figure) -> None:
        seconds = np.arange(len(base.bins_rps)) * _BIN_MS / 1e3
        for axes, (name, one) in zip(figure.subplots(1, 3), found.items(), strict=True):
            axes.step(seconds, one.bins_rps, where="post", color=COLOURS[0])
            axes.axvline(v100.FIGURE_8_AT_S, color="black", lw=0.8)
            axes.set(title=name, xlabel="s", ylabel="images/s", ylim=(0, 900))

    return Report(rows, draw, (9.6, 3.0))


@dataclass(frozen=True, slots=True)
class LeastShare:
    """ChangeGPU%: one partition, of the smallest share that serves the rate."""

    def __call__(
        self, demand: Sequence[Demand], fleet: Fleet, profiles: Profiles, current: Plan
    ) -> Plan:
        (one,) = demand
        latency = surface(profiles[one.model], "median_ms")
        gpu = fleet.gpus[0]
        batch = MOST_ROWS
        rates = {share: latency.throughput_rows_per_s(batch, share) for share in gpu.shares_pct}
        share = next((share for share, rate in rates.items() if rate >= one.rows_per_s), 100)
        slot = Slot(one.model, batch, one.rows_per_s)
        return Plan((Partition(f"{share}", gpu.id, share, (slot,)),))


def gpu(overlapped: bool) -> Gpu:
    """A V100 whose partitions can stand before old ones go, or not."""
    traits = (
        v100.V100.traits if overlapped else v100.V100.traits - {Trait.OVERLAPPED_REORGANISATION}
    )
    return replace(v100.V100, id="gpu0", traits=traits)


def run(overlapped: bool, fixed: bool = False) -> RunRecord:
    """Twelve seconds around the change; with ``fixed`` the first share is kept."""
    there = gpu(overlapped)
    scaler = replace(
        grow_and_shrink, period_ms=_PERIOD_MS, margin=MARGIN, resolve_ms=2 * _PERIOD_MS
    )
    planner = LeastShare()
    demand = (Demand(MODEL, v100.FIGURE_8_RPS[0] * MARGIN, SLO_MS, MOST_ROWS),)
    known = {MODEL: replace(v100.profile(MODEL), load_ms=v100.PLAIN_DOWNTIME_MS)}
    scenario = Simulation(
        replace(resolve("triton"), planner=planner, packer=planner, scaler=scaler),
        Fleet((there,)),
        demand,
        known,
        known,
        merge_arrivals(
            {
                MODEL: Steps(
                    ((0.0, v100.FIGURE_8_RPS[0]), (v100.FIGURE_8_AT_S, v100.FIGURE_8_RPS[1]))
                )
            },
            SECONDS,
            8,
        ),
        plan=planner(demand, Fleet((there,)), known, Plan()) if fixed else None,
        device=device_factory(Physics(_COSTS, jitter=True)),
        warm_ms=10_000.0,
        epoch_ms=_PERIOD_MS,
        # Rates are watched where accelerators can be had; this one is never needed.
        reserve=Reserve((replace(there, id="spare"),), 1e9),
    )
    return simulate(scenario)


class Change(NamedTuple):
    """What a run showed; times in ms, from the trace's start. ``down_ms``: nothing ran."""

    shares_pct: tuple[int, ...]
    down_ms: float
    at_ms: float
    after_rps: float
    lost: int
    bins_rps: NDArray[np.float64]


def seen(record: RunRecord) -> Change:
    """Look at a run."""
    start_ms = record.from_ms
    runs = sorted((one.started_ms, one.ended_ms) for one in record.executions)
    gaps = [(b[0] - a[1], a[1]) for a, b in pairwise(runs)]
    # Before the rate rises batches end sooner than requests come: only after it is a gap missed.
    down_ms, at_ms = max(gap for gap in gaps if gap[1] >= start_ms + v100.FIGURE_8_AT_S * 1e3)
    bins = np.zeros(int(SECONDS * 1e3 / _BIN_MS))
    for one in record.executions:
        place = int((one.ended_ms - start_ms) / _BIN_MS)
        if one.ended_ms >= start_ms and place < len(bins):
            bins[place] += one.rows / _BIN_MS * 1e3
    answered = (Outcome.OK, Outcome.LATE)
    lost = sum(one.outcome not in answered for one in record.served)
    shares = tuple(dict.fromkeys(s.share_pct for s in record.spans))
    tail = float(bins[-15:].mean())
    return Change(shares, down_ms, at_ms - start_ms, tail, lost, bins)


T4: Final = GPU_KINDS["t4"]
#: Millions of weights: 25.6, 143.7 and 25.0.
WEIGHTS_BYTES: Final = {"resnet50": 102_400_000, "vgg19": 574_800_000, "resnext50": 100_100_000}
PRIVATE_BYTES: Final = 1_230_000_000
_LIMIT: Final = 100


def table2() -> Report:
    """Table II: instances of a model in one T4 of 16 GB, with weights of their own and shared.

    How many fit is asked of the simulated device, which refuses a load it has no memory for. The
    text gives the instances gained, not what an instance takes beside its weights: 1,230 MB are
    taken, what gpulet's released code counts for a process with its framework. Shown beside is the
    range of that figure in which the printed gain comes out. Weights are those of the networks as
    32-bit floats.
    """
    rows: list[Row] = []
    counts: dict[str, tuple[int, int]] = {}
    for model, gain in v100.MORE_INSTANCES.items():
        own, shared = (fit(WEIGHTS_BYTES[model], PRIVATE_BYTES, s) for s in (False, True))
        counts[model] = own, shared
        least, most = consistent_bytes(model)
        rows += [
            Row(f"{model}: instances more with shared weights", gain, shared - own),
            Row(f"{model}: instances with weights of their own", None, own),
            Row(f"{model}: as printed from this private memory on", None, least / 1e6, " MB"),
            Row(f"{model}: up to this (not all between)", None, most / 1e6, " MB"),
        ]
    gained = 100.0 * (sum(s for _, s in counts.values()) / sum(o for o, _ in counts.values()) - 1)
    rows.append(Row("models more in all (20 to 30)", v100.MORE_MODELS_PCT[0], gained, " %"))
    return Report(rows)


def fit(weights_bytes: int, private_bytes: int, shared: bool) -> int:
    """Instances that a simulated T4 takes before it refuses one."""
    names = ["model"] * _LIMIT if shared else [f"model{index}" for index in range(_LIMIT)]
    points = {(1, 5): LatencyPoint(1.0, 1.0, 1.0, 1)}
    profiles = {
        name: Profile(name, "", "t4", weights_bytes, private_bytes, points) for name in names
    }
    clock, finished = SimClock(), list[WorkFinished]()
    gpu: Gpu = replace(T4, id="gpu0")
    device = SimulatedDevice(gpu, clock, profiles, MechanismCosts(0.0, 0.0, 0.0))
    for index, name in enumerate(names):
        device.do(CreatePartition("gpu0", str(index), 5), lambda done: None)
        device.do(Load("gpu0", str(index), name), finished.append)
    clock.run()
    return sum(one.failure is None for one in finished)


def consistent_bytes(model: str) -> tuple[int, int]:
    """Least and most private memory, in steps of 10 MB, with which the printed gain comes out."""
    weights, gain = WEIGHTS_BYTES[model], v100.MORE_INSTANCES[model]
    memory = T4.memory_bytes
    steps = range(300_000_000, 5_000_000_000, 10_000_000)
    own = [memory // (weights + private) for private in steps]
    shared = [(memory - weights) // private for private in steps]
    found = [p for p, a, b in zip(steps, own, shared, strict=True) if b - a == gain]
    return min(found), max(found)
