"""What a system's answers to cold starts keep, in short runs with more models than memory."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Final, NamedTuple

from hypothesis import strategies as st

from interlace.core.hardware import Fleet
from interlace.core.loading import LoadPlan
from interlace.core.messages import Evict, Fetch, Run, WorkFinished
from interlace.core.plan import Demand, Plan
from interlace.core.profile import LayerProfile, Profile
from interlace.policy.base import System
from interlace.policy.cold_policy import (
    ColdPolicy,
    Eviction,
    Holding,
    LoadChoice,
    LoadOrder,
    Prefetch,
    WaitingLoad,
)
from interlace.sim.arrivals import Gamma, merge_arrivals
from interlace.sim.run import simulate
from interlace.sim.scenario import Simulation
from interlace.testing.dispatcher_laws import RunLog
from interlace.testing.law import law
from interlace.testing.worlds import line_profile, machine

_MODELS: Final = ("a", "b", "c", "d")
#: Fetches on a link.
_AT_ONCE: Final = 2
#: A table that is read by rows, and layers that are slower to read than to copy.
_READ_MS: Final = (0.6, 9.0, 9.0)


def _layered(name: str, layer_bytes: int) -> Profile:
    layers = tuple(
        LayerProfile(f"{place}", layer_bytes, 1.5, 0.5, read_ms, "Linear")
        for place, read_ms in enumerate(_READ_MS)
    )
    plain = line_profile(name, 1.0, 0.5)
    return replace(plain, weights_bytes=3 * layer_bytes, activation_bytes=1, layers=layers)


_PROFILES: Final = {name: _layered(name, 60 + 20 * n) for n, name in enumerate(_MODELS)}


class ColdCase(NamedTuple):
    """Half a second of requests to four models; memory holds one to three of them."""

    budget_bytes: int
    demand: tuple[Demand, ...]
    cv: float
    seed: int

    def scenario(self, system: System) -> Simulation:
        """The run of these requests by a system, its plan made beforehand."""
        (plain,) = machine(10**6).gpus
        fleet = Fleet((replace(plain, weights_bytes=self.budget_bytes),))
        arrivals = merge_arrivals(
            {one.model: Gamma(one.rows_per_s, self.cv) for one in self.demand}, 0.5, self.seed
        )
        plan = system.planner(self.demand, fleet, _PROFILES, Plan())
        return Simulation(system, fleet, self.demand, _PROFILES, _PROFILES, arrivals, plan)


@st.composite
def cold_cases(draw: st.DrawFn) -> ColdCase:
    rates, slos = st.floats(2.0, 80.0), st.floats(15.0, 200.0)
    demand = tuple(Demand(model, draw(rates), draw(slos)) for model in _MODELS)
    budget_bytes = draw(st.sampled_from([360, 500, 800]))
    return ColdCase(budget_bytes, demand, draw(st.sampled_from([0.5, 1.0, 3.0])), draw(_SEEDS))


_SEEDS: Final = st.integers(0, 999)
#: Two of these fetches bring nothing, so that they do not use the link.
_THREE_FETCHES: Final = [
    ColdCase(500, tuple(map(Demand, _MODELS, (2.0, 2.0, 2.0, 13.0), (15.0,) * 4)), 3.0, 564),
    ColdCase(500, tuple(map(Demand, _MODELS, (66.77, 50.81, 2.0, 13.0), (22.26,) * 4)), 3.0, 308),
]


@law(cold_cases(), examples=6, known=_THREE_FETCHES)
def weights_come_before_they_are_used_and_leave_after(system: System, case: ColdCase) -> None:
    """Answers to cold starts are pure and possible; the budget and the link are never exceeded.

    Each request has one answer, and none is that its weights were not there.
    """
    scenario, log = case.scenario(replace(system, cold=_watched(system.cold))), RunLog()
    simulate(scenario, [log])
    log.check_answers()
    log.check_replay(scenario)
    _check_weights(log, case.budget_bytes)


def _check_weights(log: RunLog, budget_bytes: int) -> None:
    fetching: dict[str, Fetch] = {}
    held: dict[str, set[int]] = {model: set() for model in _MODELS}
    leaving: dict[str, set[int]] = {model: set() for model in _MODELS}
    running: Counter[str] = Counter()
    for _, event, commands in log.entries:
        if isinstance(event, WorkFinished):
            match event.work:
                case Fetch(model=model, plan=plan):
                    del fetching[model]
                    held[model].update(plan.brought if event.failure is None else ())
                case Evict(model=model, layers=layers):
                    leaving[model].difference_update(layers)
                case Run(batch=batch):
                    running[batch.model] -= 1
                    assert event.failure is None, event.failure
                case _:
                    pass
        for command in commands:
            match command:
                case Fetch(model=model):
                    assert model not in fetching, "fetched twice at once"
                    fetching[model] = command
                    assert len(fetching) <= _AT_ONCE, "too many fetches on the link"
                case Evict(model=model, layers=layers):
                    assert not running[model], "what runs is evicted"
                    assert model not in fetching, "what is fetched is evicted"
                    held[model].difference_update(layers)
                    leaving[model].update(layers)
                case Run(batch=batch):
                    running[batch.model] += 1
                case _:
                    pass
        taken = Counter[str]()
        for model in _MODELS:
            coming = fetching[model].plan.brought if model in fetching else ()
            own, there = _PROFILES[model].layers, {*held[model], *coming, *leaving[model]}
            taken[model] = sum(own[layer].weights_bytes for layer in there)
        assert taken.total() <= budget_bytes, "more than the budget is held"


def _watched(cold: ColdPolicy) -> ColdPolicy:
    return replace(
        cold,
        eviction=_WatchedEviction(cold.eviction),
        prefetch=_WatchedPrefetch(cold.prefetch),
        order=_WatchedOrder(cold.order),
    )


@dataclass(frozen=True)
class _WatchedEviction:
    of: Eviction

    def __call__(
        self, need_bytes: int, holdings: Iterable[Holding], now_ms: float
    ) -> Sequence[tuple[str, tuple[int, ...]]]:
        there = {one.model: one for one in holdings}
        found = self.of(need_bytes, list(there.values()), now_ms)
        assert found == self.of(need_bytes, list(there.values()), now_ms), "it is no function"
        gone = Counter((model, layer) for model, layers in found for layer in layers)
        assert all(count == 1 for count in gone.values()), "a layer leaves twice"
        assert all(layer in there[model].held for model, layer in gone), "what is not held leaves"
        return found


@dataclass(frozen=True)
class _WatchedPrefetch:
    of: Prefetch

    def __call__(
        self, free_bytes: int, holdings: Sequence[Holding], now_ms: float
    ) -> tuple[str, LoadPlan] | None:
        found = self.of(free_bytes, holdings, now_ms)
        assert found == self.of(free_bytes, holdings, now_ms), "it is no function"
        if found is not None:
            (one,) = [holding for holding in holdings if holding.model == found[0]]
            assert len(found[1].steps) == len(one.curve.layers), "a plan of another model"
            assert not one.held.intersection(found[1].brought), "what is held is brought"
        return found


@dataclass(frozen=True)
class _WatchedOrder:
    of: LoadOrder

    def __call__(self, waiting: Sequence[WaitingLoad], now_ms: float) -> LoadChoice:
        found = self.of(waiting, now_ms)
        assert found == self.of(waiting, now_ms), "it is no function"
        assert found.model is None or found.model in {one.model for one in waiting}
        return found
