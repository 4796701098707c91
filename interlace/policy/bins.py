"""Partitions while a plan is being made: what runs in each, what it leaves room for."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace

from interlace.core.hardware import Fleet, Gpu
from interlace.core.plan import Demand, Partition, Slot
from interlace.perf.duty import Turn, fit, room_rps, saturated_rps, shortest
from interlace.perf.interference import Interference, Runner
from interlace.perf.memory import holds
from interlace.perf.tables import Tables

#: Why a rate is left over when a model could run somewhere, but others do.
FULL = "the accelerators are full"
#: A rate is served if no more than this part of it is left: rounding.
ROUNDING = 1e-6


@dataclass(slots=True)
class Bin:
    """A share of one accelerator and the rate that it serves of each model in it."""

    gpu: Gpu
    share_pct: int
    rates_rps: dict[str, float] = field(default_factory=dict)


class Loads:
    """What one question asks for, with latency tables of every model at every share."""

    def __init__(self, demand: Iterable[Demand], tables: Tables) -> None:
        self.demand = {one.model: one for one in demand}
        self.tables = tables
        self._work: dict[tuple[str, int], float] = {}

    def turn(self, model: str, share_pct: int) -> Turn | None:
        """The model alone at that share, at its whole rate; ``None`` where it was not measured."""
        one = self.demand[model]
        alone = self.tables.turn(one, one.rate_rps, share_pct)
        return alone if alone.max_batch else None

    def saturated_rps(self, model: str, share_pct: int) -> float:
        """The highest rate of the model alone at that share, with 2 L(b) <= SLO; 0 if none."""
        return self.tables.saturated_rps(self.demand[model], share_pct)

    def work_ms(self, model: str, share_pct: int) -> float:
        """The least time that a row of the model takes at that share in any batch in time."""
        key = (model, share_pct)
        if key not in self._work:
            alone = self.turn(model, share_pct)
            runs = enumerate(alone.latency_ms[1:], 1) if alone else ()
            slo_ms = self.demand[model].slo_ms
            self._work[key] = min((ms / b for b, ms in runs if ms <= slo_ms), default=float("inf"))
        return self._work[key]


class Board:
    """The fleet being cut: bins on every accelerator, under geometry, memory and deadlines."""

    def __init__(
        self, fleet: Fleet, loads: Loads, interference: Interference | None = None
    ) -> None:
        self.loads = loads
        self.gpus = fleet.gpus
        self.bins: list[Bin] = []
        self._on: dict[str, list[Bin]] = {gpu.id: [] for gpu in fleet.gpus}
        self._interference = interference
        self._slow: dict[tuple[object, ...], Turn] = {}

    def on(self, gpu: Gpu) -> Sequence[Bin]:
        """The bins of an accelerator."""
        return self._on[gpu.id]

    def rest_pct(self, gpu: Gpu) -> int:
        """The largest share that may still be cut from the accelerator; 0 if none."""
        taken = [one.share_pct for one in self._on[gpu.id]]
        if not taken:
            return gpu.shares_pct[-1] if gpu.shares_pct else 0
        return next((s for s in reversed(gpu.shares_pct) if gpu.legal([*taken, s])), 0)

    def open(self, one: Bin) -> None:
        """Cut the bin from its accelerator, if it is not there yet."""
        if not any(known is one for known in self._on[one.gpu.id]):
            self.bins.append(one)
            self._on[one.gpu.id].append(one)

    def add(self, one: Bin, model: str, rate_rps: float) -> None:
        """Serve so much more of the model in the bin."""
        self.open(one)
        one.rates_rps[model] = one.rates_rps.get(model, 0.0) + rate_rps

    def admits(self, one: Bin, model: str, rate_rps: float) -> bool:
        """True if so much more of the model fits: memory, its cycle, and its neighbours' cycles."""
        if self.busy(one) + rate_rps * self.loads.work_ms(model, one.share_pct) > 1000.0 * 1.001:
            return False
        if not self.remembers(one, [model]):
            return False
        rates = {**one.rates_rps, model: one.rates_rps.get(model, 0.0) + rate_rps}
        turns = self.turns(one, rates)
        return turns is not None and shortest(turns) is not None and self._bears(one, rates)

    def room_rps(self, one: Bin, model: str) -> float:
        """The highest further rate of the model that fits beside the others; 0 if none."""
        if model in one.rates_rps or not self.remembers(one, [model]):
            return 0.0
        turns = self.turns(one, {**one.rates_rps, model: 0.0})
        if turns is None or not self._bears(one, {**one.rates_rps, model: 0.0}):
            return 0.0
        return room_rps(turns[:-1], turns[-1]) if turns[:-1] else saturated_rps(turns[-1])

    def most_rps(self, one: Bin, model: str) -> float:
        """A bound on ``room_rps`` that is quick to know."""
        work_ms = self.loads.work_ms(model, one.share_pct)
        return max(0.0, 1001.0 - self.busy(one)) / work_ms

    def turns(self, one: Bin, rates_rps: dict[str, float] | None = None) -> list[Turn] | None:
        """The bin's turns at these rates, slowed by its neighbours; ``None`` if one was not
        measured at its share."""
        rates_rps = one.rates_rps if rates_rps is None else rates_rps
        found = []
        for model, rate_rps in rates_rps.items():
            alone = self._slowed(one, model)
            if alone is None:
                return None
            found.append(Turn(model, rate_rps, alone.slo_ms, alone.latency_ms))
        return found

    def remembers(self, one: Bin, models: Sequence[str], alone: bool = False) -> bool:
        """True if memory holds these models in the bin too, beside its neighbours or ``alone``."""
        mine = (one.share_pct, list(dict.fromkeys((*one.rates_rps, *models))))
        others = [] if alone else [b for b in self._on[one.gpu.id] if b is not one]
        beside = [(other.share_pct, list(other.rates_rps)) for other in others]
        return holds(one.gpu, [*beside, mine], self.loads.tables.profiles)

    def partitions(self) -> tuple[Partition, ...]:
        """The bins that serve anything, each in its cycle of lowest occupancy."""
        made = []
        for gpu in self.gpus:
            for index, one in enumerate(b for b in self._on[gpu.id] if b.rates_rps):
                turns = self.turns(one)
                cycle = fit(turns) if turns else None
                assert turns is not None and cycle is not None  # a rate is added only if it fits
                batches = zip(turns, cycle.batches, strict=True)
                slots = tuple(Slot(t.model, batch, t.rate_rps) for t, batch in batches)
                name = f"{gpu.id}:{index}"
                made.append(Partition(name, gpu.id, one.share_pct, slots, cycle.duty_ms))
        return tuple(made)

    def busy(self, one: Bin) -> float:
        """Milliseconds a second that the bin's rows take, each in its best batch."""
        loads = self.loads
        return sum(r * loads.work_ms(m, one.share_pct) for m, r in one.rates_rps.items())

    def _bears(self, one: Bin, rates_rps: dict[str, float]) -> bool:
        """True if the neighbours still keep their cycles beside a bin of these models."""
        if self._interference is None:
            return True
        changed = replace(one, rates_rps=rates_rps)
        for other in self._on[one.gpu.id]:
            if other is not one:
                beside = [b for b in self._on[one.gpu.id] if b is not one and b is not other]
                rates = other.rates_rps.items()
                slowed = [(self._beside(other, m, [*beside, changed]), r) for m, r in rates]
                turns = [Turn(t.model, r, t.slo_ms, t.latency_ms) for t, r in slowed if t]
                if shortest(turns) is None:
                    return False
        return True

    def _slowed(self, one: Bin, model: str) -> Turn | None:
        if self._interference is None:
            return self.loads.turn(model, one.share_pct)
        return self._beside(one, model, [b for b in self._on[one.gpu.id] if b is not one])

    def _beside(self, one: Bin, model: str, others: Sequence[Bin]) -> Turn | None:
        """The model's turn beside these bins: each batch slowed by the worst model of each."""
        alone = self.loads.turn(model, one.share_pct)
        others = [b for b in others if b.rates_rps]
        if alone is None or self._interference is None or not others:
            return alone
        key = (model, one.share_pct, *((b.share_pct, frozenset(b.rates_rps)) for b in others))
        if key not in self._slow:
            latencies = [0.0]
            for batch, run_ms in enumerate(alone.latency_ms[1:], 1):
                runner = Runner(model, batch, one.share_pct)
                latencies.append(run_ms * self._factor(self._interference, runner, others))
            self._slow[key] = replace(alone, latency_ms=tuple(latencies))
        return self._slow[key]

    def _factor(self, slows: Interference, runner: Runner, others: Sequence[Bin]) -> float:
        """The slowdown by the worst model of each neighbouring bin, in its largest batch."""
        worst = []
        for other in others:
            demand = self.loads.demand
            who = [Runner(m, demand[m].max_batch, other.share_pct) for m in other.rates_rps]
            worst.append(max(who, key=lambda neighbour: slows(runner, [neighbour])))
        return max(1.0, slows(runner, worst))
