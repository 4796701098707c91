"""Trials of plans before they are reported: random arrivals in virtual time, and who is late."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from math import inf, sqrt
from typing import Final, NamedTuple

import numpy as np

from interlace.core.hardware import Fleet
from interlace.core.plan import Demand, Plan, as_rate_rps, connected_components
from interlace.core.profile import quantile
from interlace.device.simulated.device import device_factory
from interlace.device.simulated.physics import Physics, physics_of
from interlace.perf.interference import NO_INTERFERENCE
from interlace.planning.parallel import in_parallel
from interlace.planning.scenario import Scenario
from interlace.policy.base import System
from interlace.sim.arrivals import Gamma, merge_arrivals
from interlace.sim.observers import AnswerTimes
from interlace.sim.run import play
from interlace.sim.scenario import Simulation

#: A trial is played in runs of these parts of its requests, each with a seed of its own; it ends
#: early once a run has shown who is in time and who is not.
_RUNS: Final = (1 / 6, 1 / 3, 1 / 2)
#: Standard errors beyond which a run has shown it.
_SURE: Final = 3.0
_SHOWN: Final = 2.5
#: Standard errors beyond which a run is not played on for the sake of others.
_MISSED: Final = 1.5
#: Requests of a part's rarest model that are enough, and the fewest of a part that say anything.
_ENOUGH, _LEAST = 2_000, 500
#: SLOs that a run lasts at least: it begins with empty queues.
_SLOS: Final = 5.0
_Z95: Final = 1.96
_TAIL: Final = 0.99
_FAR: Final = 10  #: beyond this many SLOs a p99 is not told in figures


@dataclass(frozen=True, slots=True)
class ModelTrial:
    """What became of the requests of a model, or of an app.

    ``p99_ms`` counts those without an answer as endless.
    """

    sent: int
    in_time: int
    p99_ms: float

    @property
    def attainment(self) -> float:
        """The part answered in time; 1 if nothing was sent."""
        return self.in_time / self.sent if self.sent else 1.0

    def interval(self, errors: float = _Z95) -> tuple[float, float]:
        """Wilson's interval of the attainment, so many standard errors wide to each side."""
        if not self.sent:
            return 0.0, 1.0
        square = errors**2 / self.sent
        part = self.attainment
        middle = (part + square / 2) / (1 + square)
        half = errors / (1 + square) * sqrt(part * (1 - part) / self.sent + square / self.sent / 4)
        return (
            middle - half if self.in_time else 0.0,
            middle + half if self.in_time < self.sent else 1.0,
        )

    def p99_text(self, slo_ms: float) -> str:
        """The p99 for people; of queues without end, that it is far beyond the SLO says enough."""
        if self.p99_ms == inf:
            return "-"
        return f"{self.p99_ms:.1f} ms" if self.p99_ms <= _FAR * slo_ms else f"> {_FAR} x SLO"


@dataclass(frozen=True, slots=True)
class PlanTrial:
    """A plan's trial: each model that was tried, the seeds, and how much of the plan it was.

    An app counts as a model by its own name; stages are no requests of their models.
    """

    models: Mapping[str, ModelTrial]
    asked: Mapping[str, float]  #: the attainment that each tried model is promised
    seeds: tuple[int, ...] = ()
    short: frozenset[str] = frozenset()  #: models that lost more than the trial let them
    parts: int = 0  #: independent parts of the plan
    parts_tried: int = 0
    load: float = 1.0  #: times the rates that are asked for

    def beside(self, other: PlanTrial, asked: Mapping[str, float]) -> PlanTrial:
        """This trial and that of another part of the plan."""
        models = {**self.models, **other.models}
        return PlanTrial(
            models,
            {model: asked[model] for model in models},
            tuple(sorted({*self.seeds, *other.seeds})),
            self.short | other.short,
            self.parts,
            self.parts_tried + other.parts_tried,
            self.load,
        )

    @property
    def requests(self) -> int:
        """Requests sent in all."""
        return sum(one.sent for one in self.models.values())

    def sentence(self) -> str:
        """What was tried, in words."""
        if not self.models:
            return "nothing was tried: no model with a rate has a place"
        part = (
            ""
            if self.parts_tried == self.parts
            else (f"a sample of {self.parts_tried} of the plan's {self.parts} independent parts, ")
        )
        more = "" if self.load == 1.0 else f", {self.load - 1:.0%} more than asked"
        sent = f"{self.requests:,} random requests{more}"
        return f"tried in the engine with {sent}: {part}{self._worst()}"

    def _worst(self) -> str:
        model, worst = min(self.models.items(), key=lambda one: (one[1].attainment, one[0]))
        low, high = worst.interval()
        return (
            f"{model} is worst, {100 * worst.attainment:.2f} % in time "
            f"({100 * low:.2f} to {100 * high:.2f})"
        )

    def nearly(self, models: Iterable[str]) -> bool:
        """True if each of those models lost less than twice what it may lose."""
        return all(
            1.0 - self.models[one].attainment < 2.0 * (1.0 - self.asked[one]) for one in models
        )

    @property
    def broken(self) -> tuple[str, ...]:
        """Models with fewer requests in time than promised, the worst first."""
        short = {m: t.attainment - self.asked[m] for m, t in self.models.items()}
        return tuple(sorted((m for m, by in short.items() if by < 0), key=lambda m: (short[m], m)))


def try_plan(
    plan: Plan,
    fleet: Fleet,
    scenario: Scenario,
    system: System,
    requests: int = 0,
    seed: int = 0,
    errors: float = -_SURE,
    least_s: float = 0.0,
    load: float = 1.0,
    cores: int = 1,
) -> PlanTrial:
    """The scenario's demand, played on ``fleet`` by the plan and the system's dispatcher.

    Arrivals are renewal processes of gamma gaps with each model's ``cv`` and ``load`` times its
    rate, from seeds counted up from ``seed``; a refused request is not in time. Up to ``requests``
    are sent (0: as ``enough`` says). Parts of the plan that share nothing are tried apart, of a
    large plan as many as the requests allow, drawn by the seed.

    A part's trial ends early once every promise is shown to be kept. It also ends once a model has
    lost too many requests for its promise to be kept by ``errors`` standard errors. With
    ``least_s`` a part is played in halves, and does not end as kept before that time in all.
    Parts, and halves of one, are played on ``cores`` cores at once.
    """
    wanted = {
        d.model: replace(d, rows_per_s=d.rows_per_s * load)
        for d in scenario.promises
        if d.rows_per_s > 0
    }
    parts = [_Part.of(p, fleet, wanted, scenario) for p in tried_apart(plan, scenario)]
    parts = [part for part in parts if part.asked]
    budget = requests or enough(scenario)
    asked = {model: one.attainment for model, one in wanted.items()}
    tries = [
        _PartTrial(part, share / part.rate_rps, scenario, system, seed, errors, least_s)
        for part, share in _shares(parts, budget, seed, least_s)
    ]
    runs = [(one, number) for one in tries for number in range(len(one.runs))]
    costs = [one.part.rate_rps * sum(one.runs[number]) for one, number in runs]
    told = iter(in_parallel(lambda run: run[0].played(run[1]), runs, costs, cores))
    found = PlanTrial({}, {}, parts=len(parts), load=load)
    for one in tries:
        found = found.beside(one.found([next(told) for _ in one.runs]), asked)
    return found


def tried_apart(plan: Plan, scenario: Scenario) -> list[Plan]:
    """The parts of a plan that share nothing, where neighbours slow each other no accelerator."""
    coupled = scenario.interference != NO_INTERFERENCE or plan.overlapping
    together = [one.app.members for one in scenario.apps.values()]
    return connected_components(plan, by_gpu=coupled, together=together)


def enough(scenario: Scenario) -> int:
    """Requests of a trial: more for more models, and for rates that leave it too short to tell."""
    rates = [one.rows_per_s for one in scenario.promises if one.rows_per_s > 0]
    slos_ms = sorted(one.slo_ms for one in scenario.promises)
    usual_s = slos_ms[len(slos_ms) // 2] / 1000.0 if slos_ms else 0.0
    return int(min(max(20_000.0, 20.0 * len(rates), 2 * _SLOS * usual_s * sum(rates)), 100_000.0))


def scenario_physics(scenario: Scenario) -> Physics:
    """The simulated accelerator of a scenario: its kind's, slowed by its interference."""
    slowed = None if scenario.interference == NO_INTERFERENCE else scenario.interference
    known = physics_of(scenario.gpu)
    return Physics(known.costs, slowed, known.contention, known.link, known.transfers)


@dataclass(frozen=True, slots=True)
class _Part:
    """A part of a plan that is played alone; ``asked`` is of its models, and of apps of them."""

    plan: Plan
    fleet: Fleet
    asked: tuple[Demand, ...]

    @classmethod
    def of(
        cls, plan: Plan, fleet: Fleet, wanted: Mapping[str, Demand], scenario: Scenario
    ) -> _Part:
        models = dict.fromkeys(slot.model for part in plan.partitions for slot in part.slots)
        gpus = {part.gpu for part in plan.partitions}
        there = Fleet(tuple(gpu for gpu in fleet.gpus if gpu.id in gpus))
        apps = (n for n, one in scenario.apps.items() if models.keys() >= {*one.app.members})
        return cls(plan, there, tuple(wanted[n] for n in (*models, *apps) if n in wanted))

    @property
    def rate_rps(self) -> float:
        return sum(as_rate_rps(one.rows_per_s) for one in self.asked)

    def needed(self, least_s: float) -> float:
        """Requests until its rarest model has enough, and the run is long, also beside its SLOs."""
        rarest_rps = min(as_rate_rps(one.rows_per_s) for one in self.asked)
        longest_s = max(one.slo_ms for one in self.asked) / 1000.0
        return self.rate_rps * max(_ENOUGH / rarest_rps, _SLOS * longest_s, least_s)


def _shares(
    parts: Sequence[_Part], budget: int, seed: int, least_s: float
) -> Iterator[tuple[_Part, float]]:
    """Parts that are tried, with how many requests: what small ones do not need goes to others."""
    most = max(1, budget // _LEAST)
    chosen = list(parts)
    if len(parts) > most:
        drawn = np.random.default_rng(seed).choice(len(parts), most, replace=False)
        chosen = [parts[i] for i in sorted(drawn.tolist())]
    left = float(budget)
    chosen.sort(key=lambda part: part.needed(least_s))
    for number, part in enumerate(chosen):
        share = min(part.needed(least_s), left / (len(chosen) - number))
        left -= share
        yield part, share


class _Played(NamedTuple):
    """Answers of a part's runs, as ``AnswerTimes`` has them, and what they showed."""

    taken_ms: dict[str, list[float]]
    in_time: dict[str, int]
    seeds: tuple[int, ...]
    short: frozenset[str]  #: models that lost more than these runs alone let them


@dataclass(frozen=True)
class _PartTrial:
    """A part's trial: runs, each of a seed of its own, until they have shown enough."""

    part: _Part
    seconds: float
    scenario: Scenario
    system: System
    seed: int
    errors: float
    least_s: float

    @cached_property
    def runs(self) -> tuple[tuple[float, ...], ...]:
        """Seconds of runs that follow each other, in groups that may be played at once."""
        if self.least_s > 0:
            return ((self.seconds / 2,), (self.seconds / 2,))
        whole = _RUNS[0] * self.seconds < _SLOS * self.longest_s
        return ((self.seconds,) if whole else tuple(part * self.seconds for part in _RUNS),)

    @cached_property
    def longest_s(self) -> float:
        return max((one.slo_ms for one in self.part.asked), default=0.0) / 1000.0

    @cached_property
    def most_lost(self) -> dict[str, float]:
        """Requests of each model that may be lost in all."""
        return self._may_lose(self.seconds, self.errors)

    def _may_lose(self, seconds: float, errors: float) -> dict[str, float]:
        return {
            one.model: may_lose(as_rate_rps(one.rows_per_s) * seconds, one.attainment, errors)
            for one in self.part.asked
        }

    def played(self, number: int) -> _Played:
        """Play a group of runs."""
        least_s = max(_RUNS[0] * self.seconds, _SLOS * self.longest_s, self.least_s)
        least = min(least_s / self.seconds, 1.0) * sum(self.runs[number]) * self.part.rate_rps
        most = self._may_lose(sum(self.runs[number]), min(self.errors, -_MISSED))

        def shown(played: TrialRuns) -> bool:
            return played.requests >= least and all(
                played.lost(one.model) <= _spare(played.sent(one.model), one.attainment, _SHOWN)
                for one in self.part.asked
            )

        def short(played: TrialRuns) -> Iterator[str]:
            return (m for m in most if played.lost(m) > min(most[m], self.most_lost[m]))

        def ends(played: TrialRuns) -> bool:
            return any(short(played)) or shown(played)

        runs, part = TrialRuns(self.scenario, self.system, ends), self.part
        for seed, seconds in enumerate(self.runs[number], self.seed + number):
            if runs.play(part.plan, part.fleet, part.asked, seconds, seed):
                break
        seeds = tuple(range(self.seed + number, seed + 1))
        return _Played(runs.times.taken_ms, runs.times.in_time, seeds, frozenset(short(runs)))

    def found(self, played: Sequence[_Played]) -> PlanTrial:
        """The trial of this part from all its groups of runs."""
        taken_ms: dict[str, list[float]] = {}
        in_time: dict[str, int] = {}
        for one in played:
            for model, some in one.taken_ms.items():
                taken_ms.setdefault(model, []).extend(some)
                in_time[model] = in_time.get(model, 0) + one.in_time[model]
        models = model_trials(taken_ms, in_time)
        lost = {model: one.sent - one.in_time for model, one in models.items()}
        short = frozenset(m for m, most in self.most_lost.items() if lost.get(m, 0) > most)
        short = short.union(*(one.short for one in played))
        asked = {one.model: one.attainment for one in self.part.asked}
        seeds = tuple(sorted({seed for one in played for seed in one.seeds}))
        return PlanTrial(models, asked, seeds, short, parts_tried=1)


def may_lose(sent: float, attainment: float, errors: float) -> float:
    """Of so many requests, those that may be lost if the promise is kept by so many ``errors``.

    The score test, as in Wilson's interval. At least none: else few requests would never do.
    """
    return max(_spare(sent, attainment, errors), 0.0)


def _spare(sent: float, attainment: float, errors: float) -> float:
    """The same, below nothing where so few requests show nothing."""
    late = 1.0 - attainment
    return sent * late - errors * sqrt(sent * late * attainment)


class TrialRuns:
    """Runs of a scenario by one system, and each model's answers over all of them.

    ``times`` are its answers. A run ends early where ``enough`` says so of all that was answered up
    to then.
    """

    def __init__(
        self,
        scenario: Scenario,
        system: System,
        enough: Callable[[TrialRuns], bool] = lambda runs: False,
    ) -> None:
        self._scenario, self._system, self._enough = scenario, system, enough
        self.times = AnswerTimes()

    @property
    def requests(self) -> int:
        """Requests that were answered, refused or dropped."""
        return self.times.requests

    def sent(self, model: str) -> int:
        """The same of one model."""
        return len(self.times.taken_ms.get(model, ()))

    def lost(self, model: str) -> int:
        """Those of them that were not in time."""
        return self.sent(model) - self.times.in_time.get(model, 0)

    def play(
        self, plan: Plan, fleet: Fleet, asked: Sequence[Demand], seconds: float, seed: int
    ) -> bool:
        """One run by the plan, from empty queues until the last request is answered.

        What is ``asked`` of an app is by its name. True if it ended before, with enough.
        """
        scenario = self._scenario
        workloads = {d.model: Gamma(as_rate_rps(d.rows_per_s), d.cv) for d in asked}
        apps = {name: one for name, one in scenario.apps.items() if name in workloads}
        needed = scenario.members(workloads) if apps else ()
        run = Simulation(
            self._system,
            fleet,
            tuple(d for d in scenario.demand if d.model in needed) or tuple(asked),
            belief=scenario.busy_profiles,
            truth=scenario.truth or scenario.profiles,
            arrivals=merge_arrivals(workloads, seconds, seed),
            plan=plan,
            device=device_factory(scenario_physics(scenario)),
            apps={name: one.simulated for name, one in apps.items()},
        )
        enough, on_app = (lambda: self._enough(self)), self.times.app_ended
        play(run, [self.times], enough=enough, on_app=on_app)
        return self._enough(self)

    def models(self) -> dict[str, ModelTrial]:
        """Each model with a request sent."""
        return model_trials(self.times.taken_ms, self.times.in_time)


def model_trials(
    taken_ms: Mapping[str, Sequence[float]], in_time: Mapping[str, int]
) -> dict[str, ModelTrial]:
    """Each model with a request sent, from the figures of ``AnswerTimes``."""
    return {
        model: ModelTrial(len(taken), in_time[model], quantile(sorted(taken), _TAIL))
        for model, taken in taken_ms.items()
    }
