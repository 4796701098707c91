"""Accelerators of several kinds in one fleet: which part of each rate goes to which kind."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import inf
from typing import Final

from interlace.core.hardware import Fleet, Gpu
from interlace.core.plan import Demand, Plan
from interlace.core.profile import Profiles
from interlace.fleet.fleet_gpus import models_of
from interlace.packing.bounds.configuration import area
from interlace.packing.bounds.rates import highest_rates
from interlace.packing.lending import with_guests
from interlace.packing.solver import Constraint, LinearProgram, solve
from interlace.perf.memory import needed_bytes, room_bytes
from interlace.policy.base import Planner


@dataclass(frozen=True, slots=True)
class FleetCost:
    """What accelerators cost an hour: those with a part in the plan, and all that are there."""

    used_per_hour: float
    all_per_hour: float


@dataclass(frozen=True, slots=True)
class KindPrices:
    """The price of one accelerator an hour by kind, in any money; none where it plays no part.

    A kind that is missing among others is taken to be as dear as the dearest of them.
    """

    per_hour: Mapping[str, float] = field(default_factory=dict)

    def __bool__(self) -> bool:
        return bool(self.per_hour)

    def of(self, kind: str) -> float:
        """Of one of this kind; 1 of each without any prices: accelerator time is what counts."""
        return self.per_hour.get(kind, max(self.per_hour.values(), default=1.0))

    def total(self, gpus: Iterable[Gpu]) -> float:
        """Of all these."""
        return sum(self.of(gpu.kind) for gpu in gpus)

    def cost(self, gpus: Collection[Gpu], used: Collection[str]) -> FleetCost | None:
        """Of these accelerators, ``used`` by their ids; ``None`` without prices."""
        if not self:
            return None
        return FleetCost(self.total(gpu for gpu in gpus if gpu.id in used), self.total(gpus))

    def remark(self, kind: str) -> str:
        """What to do about a kind that has no price while others have one; "" if nothing."""
        if not self or not kind or kind in self.per_hour:
            return ""
        return (
            f"{kind} has no price and counts as the dearest: say what one costs an hour, with "
            f"--price {kind}=USD"
        )


NO_PRICES: Final = KindPrices()


#: The part of what accelerators can serve that a fleet is sized for.
TARGET_LOAD: Final = 0.7
#: Above that it is short of them.
HIGH_LOAD: Final = 0.8
#: A model counts as so much cheaper on a kind where it stands: small gains move nothing.
_STANDS: Final = 0.9
#: Parts of a rate below this are not worth a partition of their own.
_LEAST_PART: Final = 0.05
#: What a model of unknown rate is taken to fill of an accelerator.
_UNKNOWN: Final = 0.01
_ROUNDS: Final = 3
#: The cost of what is used, beside how full the fullest kind is; of memory that is not there.
_USED: Final = 1e-3
_NO_MEMORY: Final = 1e3


@dataclass(frozen=True, slots=True)
class KindsPlanner:
    """Another planner's plans for the accelerators of each kind, made into one.

    ``profiles`` are by kind and model. A model's work costs differently on each kind, and may miss
    its SLO on some. A linear program over the parts of each rate minimises the load of the fullest
    kind. At most as many parts as there are kinds are fractions; the others are 0 or 1. So a model
    goes to the kind where it costs least, relative to the other models. If a kind's plan is fuller
    than the program expected, the rest is shared out again.

    With ``prices`` a model goes where it costs least money, until cheap kinds reach the load that a
    fleet is sized for. The rest is shared out as above.
    """

    planner: Planner
    profiles: Mapping[str, Profiles]
    prices: KindPrices = NO_PRICES

    def __call__(
        self, demand: Sequence[Demand], fleet: Fleet, profiles: Profiles, current: Plan
    ) -> Plan:
        fleets = _by_kind(fleet)
        if len(fleets) < 2:
            known = [self.profiles.get(kind, {}) for kind in fleets]
            return self.planner(demand, fleet, known[0] if known else profiles, current)
        shares = _Shares(demand, fleets, self.profiles, current, self.prices)
        best: Plan | None = None
        for _ in range(_ROUNDS):
            asked = shares.demand_by_kind()
            plans = {
                kind: self.planner(asked[kind], one, self.profiles.get(kind, {}), _on(one, current))
                for kind, one in fleets.items()
                if asked[kind]
            }
            made = _together(self._lent(plans, fleets, demand))
            if best is None or _worth(made) > _worth(best):
                best = made
            if not made.underserved and not (shares.saving and _short(made)):
                break
            shares.learn(asked, plans)
        assert best is not None
        return best

    def _lent(
        self, plans: Mapping[str, Plan], fleets: Mapping[str, Fleet], demand: Sequence[Demand]
    ) -> dict[str, Plan]:
        """Time that is lent within a kind is lent to what stands on others, too."""
        slots = [s for plan in plans.values() for part in plan.partitions for s in part.slots]
        if not any(slot.guest for slot in slots):
            return dict(plans)  # this planner does not lend
        placed = {slot.model for slot in slots}
        return {
            kind: with_guests(plan, demand, fleets[kind], self.profiles.get(kind, {}), placed)
            for kind, plan in plans.items()
        }


class _Shares:
    """Parts of each model's rate by kind, and what plans have taught of each kind."""

    def __init__(
        self,
        demand: Sequence[Demand],
        fleets: Mapping[str, Fleet],
        profiles: Mapping[str, Profiles],
        current: Plan,
        prices: KindPrices,
    ) -> None:
        self._demand = demand
        self._kinds = list(fleets)
        self._room = {kind: float(len(one.gpus)) for kind, one in fleets.items()}
        self._bytes = {kind: sum(map(room_bytes, one.gpus)) for kind, one in fleets.items()}
        dearest = max(map(prices.of, fleets))
        self._price = {kind: prices.of(kind) / dearest for kind in fleets}
        self._saved_at = TARGET_LOAD if prices else 0.0  #: how full a kind is before money yields
        self._full: dict[str, float] = {}  #: each kind, by what is believed
        #: accelerators, and part of the memory, that all of a model takes of a kind which serves it
        self._taken: dict[str, dict[str, float]] = {}
        self._held: dict[str, dict[str, int]] = {}
        for kind, one in fleets.items():
            stands = models_of(_on(one, current).partitions)
            known = profiles.get(kind, {})
            self._taken[kind] = _accelerators(demand, one.gpus[0], known, stands)
            self._held[kind] = {
                model: needed_bytes([model], known, one.gpus[0]) for model in self._taken[kind]
            }

    @property
    def saving(self) -> bool:
        """Whether all is where it costs least, so that there may be room elsewhere."""
        return max(self._full.values(), default=1.0) <= self._saved_at * (1.0 + 1e-6)

    def demand_by_kind(self) -> dict[str, list[Demand]]:
        """What is asked of each kind. What none serves in time is asked of one, to hear why."""
        found: dict[str, list[Demand]] = {kind: [] for kind in self._kinds}
        parts = self._parts()
        for one in self._demand:
            kinds = parts.get(one.model) or {self._kinds[0]: 1.0}
            for kind, part in kinds.items():
                found[kind].append(replace(one, rows_per_s=one.rows_per_s * part))
        return found

    def learn(self, asked: Mapping[str, Sequence[Demand]], plans: Mapping[str, Plan]) -> None:
        """A kind has as much room as its plan found, and serves nothing that it could not place."""
        for kind, plan in plans.items():
            housed = models_of(plan.partitions)
            for one in asked[kind]:
                if (
                    one.model not in housed
                    and sum(one.model in t for t in self._taken.values()) > 1
                ):
                    self._taken[kind].pop(one.model, None)
            if plan.headroom and self._full.get(kind):
                self._room[kind] *= plan.headroom * self._full[kind]

    def _parts(self) -> dict[str, dict[str, float]]:
        """The parts of each model's rate by kind, from the linear program.

        Minimise u with sum_m y_mk g_mk <= u n_k for each kind k, sum_k y_mk = 1 for each model m.
        Memory: sum_m y_mk bytes_mk <= memory_k. Kind k has n_k accelerators; all of m takes g_mk.
        Of answers with equal u the cheapest is taken. With prices, u is at least ``TARGET_LOAD``.
        """
        pairs = [
            (one.model, kind)
            for one in self._demand
            for kind in self._kinds
            if one.model in self._taken[kind]
        ]
        if not pairs:
            return {}
        column = {pair: place for place, pair in enumerate(pairs)}
        fullest, short = len(pairs), len(pairs) + 1
        most = sum(self._room.values())
        rows = [
            Constraint(tuple(own), (1.0,) * len(own), 1.0, 1.0)
            for one in self._demand
            if (own := [column[p] for k in self._kinds if (p := (one.model, k)) in column])
        ]
        for kind in self._kinds:
            here = [(column[pair], pair[0]) for pair in pairs if pair[1] == kind]
            places = tuple(place for place, _ in here)
            taken = tuple(self._taken[kind][model] for _, model in here)
            held = tuple(self._held[kind][model] / self._bytes[kind] for _, model in here)
            rows.append(Constraint((*places, fullest), (*taken, -self._room[kind]), -inf, 0.0))
            rows.append(Constraint((*places, short), (*held, -1.0), -inf, 1.0))
        costs = [
            _USED * self._price[kind] * self._taken[kind][model] / most for model, kind in pairs
        ]
        size = len(pairs) + 2
        lower = [*[0.0] * len(pairs), self._saved_at, 0.0]
        answer = solve(
            LinearProgram([*costs, 1.0, _NO_MEMORY], lower, [inf] * size, [False] * size, rows)
        )
        self._full = self._filled(dict(zip(pairs, answer.values, strict=False)))
        parts: dict[str, dict[str, float]] = {}
        for (model, kind), part in zip(pairs, answer.values, strict=False):
            if part >= _LEAST_PART or not answer.feasible:
                parts.setdefault(model, {})[kind] = part
        return {model: _whole(kinds) for model, kinds in parts.items()}

    def _filled(self, parts: Mapping[tuple[str, str], float]) -> dict[str, float]:
        """How full each kind is with these parts of rates."""
        full = dict.fromkeys(self._kinds, 0.0)
        for (model, kind), part in parts.items():
            full[kind] += part * self._taken[kind][model] / self._room[kind]
        return full


def _whole(parts: Mapping[str, float]) -> dict[str, float]:
    total = sum(parts.values())
    if total <= 0.0:
        return {next(iter(parts)): 1.0}
    return {kind: part / total for kind, part in parts.items()}


def _accelerators(
    demand: Sequence[Demand], gpu: Gpu, profiles: Profiles, stands: set[str]
) -> dict[str, float]:
    """How many accelerators like this one all of each model's rate takes at least.

    Models that it does not serve in time are left out.
    """
    some = [replace(one, rows_per_s=one.rows_per_s or 1.0) for one in demand]
    each = area(highest_rates(some, gpu, profiles), gpu).price
    return {
        one.model: (one.rows_per_s * each[one.model] if one.rows_per_s else _UNKNOWN)
        * (_STANDS if one.model in stands else 1.0)
        for one in demand
        if one.model in each
    }


def _by_kind(fleet: Fleet) -> dict[str, Fleet]:
    found: dict[str, list[Gpu]] = {}
    for gpu in fleet.gpus:
        found.setdefault(gpu.kind, []).append(gpu)
    return {kind: Fleet(tuple(found[kind])) for kind in sorted(found)}


def _on(fleet: Fleet, plan: Plan) -> Plan:
    """What of a plan is on these accelerators."""
    here = {gpu.id for gpu in fleet.gpus}
    return replace(plan, partitions=tuple(p for p in plan.partitions if p.gpu in here))


def _together(plans: Mapping[str, Plan]) -> Plan:
    every = list(plans.values())
    unserved: dict[str, float] = {}
    for plan in every:
        for model, rate in plan.unserved_rows_per_s.items():
            unserved[model] = unserved.get(model, 0.0) + rate
    headrooms = [plan.headroom for plan in every]
    known = [one for one in headrooms if one is not None]
    return Plan(
        tuple(part for plan in every for part in plan.partitions),
        unserved,
        {model: why for plan in every for model, why in plan.reasons.items()},
        max((p.session_ms for p in every if p.session_ms is not None), default=None),
        min(known, default=None) if len(known) == len(every) else None,
        any(plan.overlapping for plan in every),
        {model: one for plan in every for model, one in plan.elastic.items()},
        tuple(note for plan in every for note in plan.notes),
    )


def _short(plan: Plan) -> bool:
    """Whether a plan is fuller than a fleet may be."""
    return plan.headroom is not None and plan.headroom * HIGH_LOAD < 1.0


def _worth(plan: Plan) -> tuple[int, float, bool]:
    """What a plan is better by: models that stand, rows/s that it serves of those asked, room."""
    left = sum(plan.unserved_rows_per_s.values())
    return len(models_of(plan.partitions)), -left, not _short(plan)
