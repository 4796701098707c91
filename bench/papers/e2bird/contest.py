"""The systems of E2bird's evaluation, and one of them under a given trace."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np
from numpy.typing import NDArray

from bench.harness import highest
from bench.papers.e2bird import titan
from bench.papers.e2bird.titan import GPU, MAX_BATCH, OPT_WAIT_MS, QOS_MS, STREAMS, profile
from bench.playing import played
from interlace.core.gpu_kinds import uniform_fleet
from interlace.core.plan import Demand, Partition, Plan, Slot
from interlace.policy.base import System
from interlace.policy.catalog import resolve
from interlace.policy.dispatchers.dynamic_batching import DynamicBatching
from interlace.policy.planners.e2bird import ElasticWorkers, SearchedEngine, naive_engine
from interlace.policy.planners.whole_gpus import spread
from interlace.sim.arrivals import Arrivals
from interlace.sim.record import RunRecord
from interlace.sim.scenario import MakeDevice

Latencies = NDArray[np.float64]

#: Batches that TF-Serving has on their way at once: by default one for each processor that it sees,
#: and an E5-2620 v3 shows twelve.
BATCH_THREADS: Final = 12
#: Nobody is turned away or dropped: the paper shows latencies beyond the QoS target, too.
_PATIENT_MS: Final = 60_000.0


@dataclass(frozen=True, slots=True)
class Entrant:
    """A system, its plan and the GPU it runs on."""

    system: System
    plan: Plan
    device: MakeDevice
    overhead: bool = False  #: a batch takes what happens around it, too


def ebird(model: str, enhanced: bool) -> Entrant:
    """N-Ebird, or E-Ebird with a search on the streams' law."""
    make = SearchedEngine(STREAMS.measure) if enhanced else naive_engine
    row = resolve("e2bird" if enhanced else "nebird")
    planner = ElasticWorkers(spread, make)
    demand = [Demand(model, 100.0, QOS_MS, MAX_BATCH)]
    plan = planner(demand, uniform_fleet(GPU, 1), {model: profile(model)}, Plan())
    return Entrant(row, plan, titan.ebird_gpu)


def tf_serving(
    model: str, wait_ms: float = OPT_WAIT_MS, padded: bool = False, threads: int = BATCH_THREADS
) -> Entrant:
    """TF-Serving with a longest wait; padded, it is the policy "Static"."""
    name = "tfserving-static" if padded else "tfserving" if wait_ms else "tfserving-nowait"
    row = replace(resolve(name), dispatcher=DynamicBatching(wait_ms=wait_ms, padded=padded))
    workers = tuple(
        Partition(f"gpu0:{index}", "gpu0", 100, (Slot(model, MAX_BATCH, 0.0),))
        for index in range(threads)
    )
    return Entrant(row, Plan(workers, overlapping=True), titan.tf_gpu, overhead=True)


def entrants(model: str) -> dict[str, Entrant]:
    """The three that are compared."""
    return {
        "TF-Serving": tf_serving(model),
        "N-Ebird": ebird(model, enhanced=False),
        "E-Ebird": ebird(model, enhanced=True),
    }


def latencies_ms(entrant: Entrant, model: str, times_ms: Sequence[float]) -> Latencies:
    """End-to-end latency of each request, in order of arrival."""
    extra_ms = (
        {rows: titan.outside_ms(rows) for rows in titan.alone_ms(model)}
        if entrant.overhead
        else None
    )
    times = np.asarray(times_ms, np.float64)
    arrivals = Arrivals(
        (model,), times, np.zeros(len(times), np.int32), (float(times[-1]) + 1.0) / 1000.0
    )
    record = played(
        entrant.system,
        uniform_fleet(GPU, 1),
        [Demand(model, 100.0, _PATIENT_MS, MAX_BATCH)],
        {model: profile(model)},
        arrivals,
        entrant.plan,
        truth={model: profile(model, extra_ms)},
        device=entrant.device,
        warm_ms=2_000.0,
    )
    assert len(record.served) == len(times)
    return in_order(record)


def in_order(record: RunRecord) -> Latencies:
    """End-to-end latencies of a record in order of arrival."""
    served = sorted(record.served, key=lambda one: one.arrived_ms)
    return np.array([one.answered_ms - one.arrived_ms for one in served])


def even(rate_rps: float, count: int, start_ms: float = 0.0) -> list[float]:
    """Times of a metronome."""
    return [start_ms + 1000.0 * index / rate_rps for index in range(count)]


def saved_pct(before: Latencies, after: Latencies, part: slice) -> float:
    """By how much the mean latency of a phase falls."""
    return 100.0 * float(1.0 - after[part].mean() / before[part].mean())


def low_then_high(high_rps: float, low_part: float, low: int, high: int) -> list[float]:
    """Figure 13's trace: arrivals at a part of the rate, then at the rate."""
    times_ms = even(low_part * high_rps, low)
    return times_ms + even(high_rps, high, times_ms[-1] + 1000.0 / high_rps)


def highest_rps(entrant: Entrant, model: str, low: float, high: float, count: int) -> float:
    """The highest steady rate at which 99 % of the requests end within the QoS target.

    To 2 %, by bisection; ``count`` requests each, of which the first quarter is not looked at.
    """

    def kept(rate_rps: float) -> bool:
        seen = latencies_ms(entrant, model, even(rate_rps, count))[count // 4 :]
        return float(np.quantile(seen, 0.99)) <= QOS_MS

    return highest(kept, low, high, 1.02)
