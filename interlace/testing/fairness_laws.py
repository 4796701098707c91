"""The bound of ``policy.fairness``, measured from outside in overloaded runs of the engine."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import permutations
from typing import Final

from hypothesis import strategies as st

from interlace.core.hardware import Fleet
from interlace.core.messages import Command, Event, SendReply
from interlace.core.plan import Demand, Partition, Plan, Slot
from interlace.core.request import Outcome
from interlace.policy.admission import DeadlineAdmission, admit_all
from interlace.policy.base import Admission, Dispatcher, System
from interlace.policy.catalog import resolve as row
from interlace.policy.decision import Dispatch
from interlace.policy.fairness import BATCHES, overdue_ms, planned_rows_per_s
from interlace.policy.view import PartitionView, View
from interlace.sim.arrivals import Gamma, merge_arrivals
from interlace.sim.run import simulate
from interlace.sim.scenario import Simulation
from interlace.testing.law import law
from interlace.testing.worlds import line_profile, machine

MODELS: Final = ("a", "b", "c", "d")
#: Shorter than the engine's window, to skip models that have recovered.
_LOSING_MS: Final = 999.0
#: Sums of times that are equal on paper differ by less.
_ROUNDING_MS: Final = 1e-6


@dataclass
class _Contention:
    """A time in which two models contend: how far one's weighted service has been from the other's.

    ``now_ms`` is that of the one less that of the other since then, in ms of planned arrivals.
    """

    now_ms: float = 0.0
    low_ms: float = 0.0
    high_ms: float = 0.0

    def add(self, ms: float) -> None:
        self.now_ms += ms
        self.low_ms, self.high_ms = min(self.low_ms, self.now_ms), max(self.high_ms, self.now_ms)


@dataclass
class MeasuredFairness:
    """Observes a dispatcher's decisions and answers; keeps the largest gap over the bound.

    It does not read the engine's counters: the answers show which models lose requests.
    """

    inner: Dispatcher
    lost_ms: dict[str, float] = field(default_factory=dict)
    spans: dict[tuple[str, str, str], _Contention] = field(default_factory=dict)
    worst: float = 0.0  #: gap over bound
    pairs: int = 0  #: of models that contended, decision by decision

    def observe(self, now_ms: float, event: Event, commands: Sequence[Command]) -> None:
        for command in commands:
            if isinstance(command, SendReply) and command.reply.outcome is not Outcome.OK:
                self.lost_ms[command.reply.request.model] = now_ms

    def __call__(self, view: View, now_ms: float) -> Dispatch:
        decision = self.inner(view, now_ms)
        for partition in view.partitions:
            if partition.takes(now_ms):
                self._look(partition, view, decision, now_ms)
        return decision

    def _look(
        self, partition: PartitionView, view: View, decision: Dispatch, now_ms: float
    ) -> None:
        contending = {
            slot.model: slot
            for slot in partition.slots
            if now_ms - self.lost_ms.get(slot.model, float("-inf")) <= _LOSING_MS
            and view.queue(slot.model).rows - _taken(slot, partition, decision) >= slot.batch
        }
        ran = {x.model: x.rows for x in decision.launches if x.partition == partition.id}
        for one, other in permutations(sorted(s.model for s in partition.slots), 2):
            key = partition.id, one, other
            if one in contending and other in contending:
                span = self.spans.setdefault(key, _Contention())
                span.add(_ms(contending[one], ran) - _ms(contending[other], ran))
                gap_ms = span.high_ms - span.low_ms
                bound_ms = _batches_ms(contending[one]) + _batches_ms(contending[other])
                self.worst = max(self.worst, gap_ms / bound_ms)
                self.pairs += 1
            else:
                self.spans.pop(key, None)


def _taken(slot: Slot, partition: PartitionView, decision: Dispatch) -> int:
    """Rows of the model that other partitions take at this moment."""
    launches = [one for one in decision.launches if one.model == slot.model]
    return sum(one.rows for one in launches if one.partition != partition.id)


def _ms(slot: Slot, ran: Mapping[str, int]) -> float:
    return ran.get(slot.model, 0) / planned_rows_per_s(slot) * 1000.0


def _batches_ms(slot: Slot) -> float:
    """A model's part of the bound: the batches it waits, and one that runs."""
    return (BATCHES + 1) * slot.batch / planned_rows_per_s(slot) * 1000.0


@st.composite
def overloads(draw: st.DrawFn) -> Simulation:
    """Two partitions of two to four models each, asked for two to six times what they can serve."""
    profiles = {
        m: line_profile(m, draw(st.floats(0.2, 4.0)), draw(st.floats(0.1, 1.0)), speedup=1.0)
        for m in MODELS
    }
    partitions = []
    for index in range(2):
        models = draw(st.permutations(MODELS))[: draw(st.integers(2, 4))]
        slots = [Slot(m, draw(st.integers(1, 8)), draw(st.floats(20.0, 400.0))) for m in models]
        partitions.append(Partition(f"p{index}", "g0", 50, tuple(slots)))
    times = draw(st.floats(2.0, 6.0))
    demand = []
    for model in sorted({s.model for p in partitions for s in p.slots}):
        rows_per_s = times * 1000.0 / profiles[model].points[8, 50].median_ms * 8 / len(MODELS)
        demand.append(Demand(model, rows_per_s, draw(st.floats(15.0, 300.0))))
    cv, seed = draw(st.sampled_from([0.5, 1.0, 3.0])), draw(st.integers(0, 99))
    workloads = {d.model: Gamma(d.rows_per_s, cv) for d in demand}
    kept: Admission = DeadlineAdmission()
    admission = draw(st.sampled_from([admit_all, kept]))
    (gpu,) = machine().gpus
    fleet = Fleet((replace(gpu, ahead_ms=draw(st.sampled_from([0.0, 1.5]))),))
    return Simulation(
        replace(row("interlace"), admission=admission), fleet, tuple(demand), profiles,
        profiles, merge_arrivals(workloads, 1.0, seed), Plan(tuple(partitions)),
    )  # fmt: skip


def measured(scenario: Simulation, system: System) -> MeasuredFairness:
    """The run of a scenario by a system's dispatcher."""
    watched = MeasuredFairness(system.dispatcher)
    one = replace(scenario.system, dispatcher=watched)
    simulate(replace(scenario, system=one), [watched.observe])
    return watched


@dataclass
class WatchedTurns:
    """A dispatcher of overlapping partitions: does who is overdue begin a batch in its turn?

    Of the models that a lane would take, the one furthest behind that is overdue: in ``late`` if it
    has not begun when the batches that ran as it became that have ended.
    """

    inner: Dispatcher
    turn: str = ""
    due_ms: float = 0.0
    turns: int = 0
    late: list[str] = field(default_factory=list)

    def __call__(self, view: View, now_ms: float) -> Dispatch:
        turn = _most_overdue(view, now_ms)
        if turn != self.turn:
            self.turn = turn
            self.due_ms = max([now_ms, *(p.free_at_ms for p in view.partitions)])
            self.turns += bool(turn)
        decision = self.inner(view, now_ms)
        if any(one.model == turn for one in decision.launches):
            self.turn = ""
        elif turn and now_ms > self.due_ms + _ROUNDING_MS:
            self.late.append(turn)
        return decision


def _most_overdue(view: View, now_ms: float) -> str:
    """The model furthest behind that is overdue and has a lane that takes a batch; "" if none."""
    overdue: list[tuple[float, str]] = []
    for partition in view.partitions:
        if partition.takes(now_ms):
            for slot in view.queued(partition):
                lag_ms = partition.lags_ms.get(slot.model, 0.0)
                if lag_ms and lag_ms >= overdue_ms(slot):
                    overdue.append((-lag_ms, slot.model))
    return min(overdue, default=(0.0, ""))[1]


@st.composite
def overlapping_overloads(draw: st.DrawFn) -> Simulation:
    """Three or four models with a lane or two each on one accelerator, asked for too much."""
    drawn = draw(overloads())
    partitions, models = list[Partition](), [d.model for d in drawn.demand]
    for model in models:
        slot = Slot(model, draw(st.integers(1, 8)), draw(st.floats(20.0, 400.0)))
        for share_pct in draw(st.sampled_from([(50,), (100,), (50, 50), (50, 100)])):
            partitions.append(Partition(f"p{len(partitions)}", "g0", share_pct, (slot,)))
    fleet = Fleet(tuple(replace(gpu, ahead_ms=0.0) for gpu in drawn.fleet.gpus))
    return replace(drawn, fleet=fleet, plan=Plan(tuple(partitions), overlapping=True))


@law(overlapping_overloads(), examples=25, holds_for=lambda system: system.fair)
def an_overdue_model_begins_when_those_that_ran_have_ended(
    system: System, scenario: Simulation
) -> None:
    watched = WatchedTurns(system.dispatcher)
    simulate(replace(scenario, system=replace(scenario.system, dispatcher=watched)))
    assert not watched.late


@law(overloads(), examples=25, holds_for=lambda system: system.fair)
def no_contending_model_falls_behind_the_bound(system: System, scenario: Simulation) -> None:
    assert measured(scenario, system).worst < 1.0
