"""Models that always have work on a simulated GPU: how they share it, and what batches take.

Before that, how many copies of a model at which share (sections IV and VI-B).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from bench.playing import played
from interlace.core.gpu_kinds import uniform_fleet
from interlace.core.hardware import Gpu
from interlace.core.plan import Demand, Partition, Plan, Slot
from interlace.core.profile import Profile
from interlace.device.simulated.physics import Physics, RunningBatch
from interlace.perf.latency import Surface
from interlace.policy.base import Dispatcher
from interlace.policy.catalog import resolve
from interlace.policy.decision import Dispatch, Launch
from interlace.policy.dispatchers.dynamic_batching import DynamicBatching
from interlace.policy.view import View
from interlace.sim.arrivals import Steady, merge_arrivals
from interlace.sim.record import Execution, RunRecord

#: What one more instance must gain in throughput to be worth its memory.
_WORTH: Final = 1.05
_ALLOWANCE: Final = 1e-9


@dataclass(frozen=True, slots=True)
class Instances:
    """``count`` instances of ``share_pct`` that run batches of ``batch``; rows/s of them all."""

    count: int
    share_pct: int
    batch: int
    rows_per_s: float

    @property
    def total_pct(self) -> int:
        return self.count * self.share_pct


def batch_latency(latency: Surface, share_pct: int, until_ms: float, max_batch: int) -> int:
    """Batch-Latency: the largest batch that ends within ``until_ms`` at that share; 0 if none.

    Shares below the smallest measured have none.
    """
    if share_pct < latency.shares_pct[0]:
        return 0
    return latency.largest_batch(until_ms, share_pct, max_batch)


def multi_model(
    latency: Surface,
    shares_pct: Sequence[int],
    deadline_ms: float,
    max_batch: int,
    rows_per_s: float | None = None,
    room_pct: int = 100,
) -> Instances | None:
    """Multi-Model: instances and their share in ``room_pct`` of unused accelerator.

    Each runs back to back the batch of highest throughput that ends within ``deadline_ms``. With a
    rate, the least part of the accelerator that serves it; without one, or if it cannot be served,
    the highest throughput. An instance more must gain 5 %, since it takes memory. ``None`` if no
    share meets the deadline.
    """
    offers = [
        offer
        for share in sorted(shares_pct, reverse=True)
        if latency.shares_pct[0] <= share <= room_pct
        for offer in _offers(latency, share, deadline_ms, max_batch, room_pct // share)
    ]
    if rows_per_s is not None:
        enough = [one for one in offers if one.rows_per_s >= rows_per_s * (1 - _ALLOWANCE)]
        if enough:
            return min(enough, key=lambda one: (one.total_pct, one.count))
    best: Instances | None = None
    for one in sorted(offers, key=lambda one: (one.count, one.total_pct)):
        if best is None or one.rows_per_s > best.rows_per_s * (
            _WORTH if one.count > best.count else 1
        ):
            best = one
    return best


def _offers(
    latency: Surface, share_pct: int, deadline_ms: float, max_batch: int, most: int
) -> list[Instances]:
    batch = latency.best_batch(deadline_ms, share_pct, max_batch)
    if batch == 0:
        return []
    alone_rows_per_s = latency.throughput_rows_per_s(batch, share_pct)
    return [Instances(n, share_pct, batch, n * alone_rows_per_s) for n in range(1, most + 1)]


#: Nobody is dropped or refused for lateness: what is looked at are batches, not promises.
_PATIENT_MS: Final = 1e7
#: Kernels of one inference: 156 of MobileNet are counted in D-STACK's Figure 5; the others are the
#: operations of the networks as PyTorch runs them (convolution, normalisation, ReLU, addition,
#: pooling, linear), which for MobileNet are of the same order.
KERNELS: Final = {"alexnet": 20, "mobilenet": 156, "resnet50": 174, "vgg19": 43}
_ENOUGH: Final = 1.05


def time_sliced(running: Sequence[RunningBatch]) -> Sequence[float]:
    """Processes take turns on the whole GPU in equal slices (section IV-B, temporal sharing)."""
    return [1.0 / len(running)] * len(running)


@dataclass(frozen=True, slots=True)
class FirstCome:
    """Kernels of all processes are served as they come, without limits (default MPS).

    Each process has one kernel waiting or running. In a round each has one served, which fills
    the part of the GPU that its batch can use: so a round takes the sum of their kernels' times
    alone, each times that part, and whoever has long kernels gets on best.
    """

    def __call__(self, running: Sequence[RunningBatch]) -> Sequence[float]:
        longest = [self._kernel_ms(one) for one in running]
        used = [self._part(one) for one in running]
        if sum(used) <= 1.0:
            return [1.0] * len(running)
        round_ms = sum(part * ms for part, ms in zip(used, longest, strict=True))
        return [min(1.0, ms / round_ms) for ms in longest]

    def _kernel_ms(self, one: RunningBatch) -> float:
        return one.latency.latency_ms(one.rows, 100) / KERNELS[one.model]

    def _part(self, one: RunningBatch) -> float:
        """The smallest share at which a batch is nearly as fast as on the whole GPU."""
        enough_ms = one.latency.latency_ms(one.rows, 100) * _ENOUGH
        times_ms = ((s, one.latency.latency_ms(one.rows, s)) for s in one.latency.shares_pct)
        return next((share / 100.0 for share, ms in times_ms if ms <= enough_ms), 1.0)


@dataclass(frozen=True, slots=True)
class Adaptive:
    """Every idle partition runs the largest batch that is predicted to end within ``slo_ms``.

    Predictions are those of the engine, which follow what was seen: batches adapt to company
    (section IV-B names Clipper and Nexus). At least one row runs, whatever it takes.
    """

    slo_ms: float

    def __call__(self, view: View, now_ms: float) -> Dispatch:
        launches: list[Launch] = []
        for partition in view.partitions:
            if not partition.accepting or partition.running is not None:
                continue
            for slot in partition.slots:
                if view.queue(slot.model).head is not None:
                    rows = self._rows(slot.model, partition.share_pct, slot.batch, view)
                    launches.append(Launch(partition.id, slot.model, rows))
        return Dispatch(tuple(launches))

    def _rows(self, model: str, share_pct: int, most: int, view: View) -> int:
        rows = most
        while rows > 1 and view.model(model).latency_ms(rows, share_pct) > self.slo_ms:
            rows -= 1
        return rows


def instances(model: str, share_pct: int, batch: int, count: int) -> list[Partition]:
    """``count`` instances of a model, each with a share of its own."""
    slot = Slot(model, batch, 1.0)
    return [Partition(f"{model}.{i}", "gpu0", share_pct, (slot,)) for i in range(count)]


def kept_busy(
    partitions: Sequence[Partition],
    profiles: Mapping[str, Profile],
    dispatcher: Dispatcher,
    physics: Physics,
    gpu: Gpu,
    rates_rps: Mapping[str, float],
    seconds: float,
) -> RunRecord:
    """Partitions of one GPU under a dispatcher, each model sent so many requests a second."""
    models = {slot.model: slot.batch for one in partitions for slot in one.slots}
    return played(
        replace(resolve("triton"), dispatcher=dispatcher),
        uniform_fleet(gpu, 1),
        [Demand(m, rates_rps[m], _PATIENT_MS, batch) for m, batch in models.items()],
        {model: profiles[model] for model in models},
        merge_arrivals({model: Steady(rates_rps[model]) for model in models}, seconds, seed=2),
        Plan(tuple(partitions), overlapping=True),
        physics,
        queue_limit=1_000,
    )


class Crowd(NamedTuple):
    """So many instances: rows/s of them all, and how long their batches took, ascending, in ms."""

    rps: float
    taken_ms: NDArray[np.float64]


def crowd(
    profile: Profile,
    gpu: Gpu,
    share_pct: int,
    batch: int,
    count: int,
    rate_rps: float,
    seconds: float,
) -> Crowd:
    """Instances of one share that share so many requests/s, more than they serve."""
    model = profile.model
    record = kept_busy(
        instances(model, share_pct, batch, count),
        {model: profile},
        DynamicBatching(wait_part=float("inf")),
        Physics(jitter=True),
        gpu,
        {model: rate_rps},
        seconds,
    )
    return Crowd(throughput_rps(record, model), latencies_ms(record, model))


def inside(record: RunRecord, model: str) -> list[Execution]:
    """Batches of a model that ended while requests came."""
    return [
        one
        for one in record.executions
        if one.model == model and record.from_ms < one.ended_ms <= record.until_ms
    ]


def throughput_rps(record: RunRecord, model: str) -> float:
    """Rows per second."""
    rows = sum(one.rows for one in inside(record, model))
    return rows / (record.until_ms - record.from_ms) * 1000.0


def latencies_ms(record: RunRecord, model: str) -> NDArray[np.float64]:
    """How long each batch took, ascending."""
    return np.sort([one.ended_ms - one.started_ms for one in inside(record, model)])
