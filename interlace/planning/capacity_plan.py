"""The answer to a capacity question: a plan, what it promises, and how far from the best it is."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import inf, isfinite
from pathlib import Path
from time import perf_counter
from typing import Final

from interlace.core.hardware import Fleet
from interlace.core.plan import Partition, Plan, PlanMoves, Slot, moves
from interlace.core.rendering import html_table, json_text
from interlace.core.tables import counted
from interlace.packing.bounds import LowerBound, lower_bound
from interlace.perf.latency import surface
from interlace.perf.memory import needed_bytes
from interlace.planning.parallel import usable_cores
from interlace.planning.plan_file import save_plan
from interlace.planning.plan_search import given_plan, search_plan
from interlace.planning.scenario import Scenario, read_scenario
from interlace.planning.trial import PlanTrial
from interlace.policy.base import System
from interlace.policy.catalog import system_of

#: 2: what is not served is in rows per second, and called so.
_SCHEMA: Final = 2
_MOST_NAMES: Final = 8


@dataclass(frozen=True, slots=True)
class CapacityPlan:
    """A plan for a scenario by one system.

    ``bound`` is how many accelerators any scheduler needs; ``trial`` what became of each planned
    model's requests when the plan was played in the engine under random arrivals.
    """

    scenario: Scenario
    system: str
    plan: Plan
    fleet: Fleet
    bound: LowerBound
    trial: PlanTrial
    planning_s: float
    moved: PlanMoves | None = None  #: from the current plan, if one was given

    @property
    def gpus(self) -> int:
        """Accelerators in use."""
        return len({partition.gpu for partition in self.plan.partitions})

    @property
    def gap(self) -> float:
        """How many times the lower bound the plan uses; 1 is proven best."""
        return self.gpus / self.bound.gpus if self.bound.gpus else 1.0

    @property
    def cost_per_hour(self) -> float | None:
        """What the accelerators cost, if a price is known."""
        price = self.scenario.price_per_hour
        return None if price is None else price * self.gpus

    @property
    def served(self) -> bool:
        """True if nothing is left unserved."""
        return not self.plan.underserved

    @property
    def kept(self) -> bool:
        """True if every model is planned for and served, and none broke its promise."""
        placed = not (self.scenario.as_given and self.plan.unserved_rows_per_s)
        return placed and self.served and not self.trial.broken and not self.scenario.left_out

    @property
    def worst_attainment(self) -> float:
        """Attainment of the model that fared worst in the trial; 0 if one is not served at all."""
        placed = {slot.model for part in self.plan.partitions for slot in part.slots}
        if any(one.rows_per_s > 0 and one.model not in placed for one in self.scenario.demand):
            return 0.0
        return min((one.attainment for one in self.trial.models.values()), default=1.0)

    @property
    def memory_bytes(self) -> dict[str, int]:
        """Held on each GPU in use: weights and activations; behind walls, weights in each."""
        gpu, profiles = self.scenario.gpu, self.scenario.profiles
        walls = {share for share, _ in gpu.walls}
        held: dict[str, int] = {}
        shared: dict[str, list[str]] = {}
        for part in self.plan.partitions:
            models = [slot.model for slot in part.slots]
            if part.share_pct in walls:
                held[part.gpu] = held.get(part.gpu, 0) + needed_bytes(models, profiles, gpu)
            else:
                shared.setdefault(part.gpu, []).extend(models)
        for name, models in shared.items():
            held[name] = held.get(name, 0) + needed_bytes(models, profiles, gpu)
        return held

    def batch_ms(self, part: Partition, slot: Slot) -> float:
        """The latency of a full batch of the slot, beside busy neighbours."""
        latency = surface(self.scenario.busy_profiles[slot.model])
        return latency.latency_ms(slot.batch, part.share_pct)

    def busy(self, part: Partition, slot: Slot) -> float:
        """The part of the partition's time that the slot's planned rate takes in full batches."""
        return slot.rows_per_s / slot.batch * self.batch_ms(part, slot) / 1000.0

    def sentences(self) -> list[str]:
        """What is not served and why, the cost, the bound, the gap, and what was assumed."""
        unserved, reasons, bound = self.plan.unserved_rows_per_s, self.plan.reasons, self.bound
        cost = "" if self.cost_per_hour is None else f", {self.cost_per_hour:.2f} an hour"
        by = (
            f"by area {bound.area.accelerators:.2f}, by layouts "
            f"{bound.configuration.accelerators:.2f}, by gathering "
            f"{bound.gathering.accelerators:.2f}, by memory {bound.memory.accelerators:.2f}"
        )
        said = [
            f"not served: {f'{rps:.4g} requests/s of ' if rps else ''}{model}: "
            f"{reasons.get(model, 'no reason')}"
            for model, rps in unserved.items()
        ]
        said += [f"left out: {why}" for why in self.scenario.left_out]
        said += self._headroom() if self.scenario.as_given else []
        said += [f"promise broken: {self._broken(model)}" for model in self.trial.broken]
        said.append(
            f"{self.gpus} {self.scenario.gpu.kind} ({self.system}, planned in "
            f"{self.planning_s:.2f} s){cost}"
        )
        said.append(f"no scheduler needs fewer than {bound.gpus}: {by}; gap {self._gap_text()}")
        if bound.excluded:
            left_out = _some(bound.excluded)
            said.append(f"the bound leaves out what no share serves in time: {left_out}")
        said += [] if self.moved is None else [self.moved.sentence()]
        return [*said, self.trial.sentence(), *self.plan.notes, *self.scenario.notes]

    def _headroom(self) -> list[str]:
        headroom = self.plan.headroom
        if headroom is None or headroom == inf:
            return []
        if headroom >= 1:
            return [f"every rate could be {headroom:.2f} times as high"]
        if self.plan.unserved_rows_per_s:
            return [f"the demand is too high: {headroom:.2%} of every rate fits"]
        return [f"all rates are planned; queues are known to bear {headroom:.2%} of each"]

    def _broken(self, model: str) -> str:
        found = self.trial.models[model]
        low, high = found.interval()
        return (
            f"{100 * found.attainment:.2f} % of {model} in time ({100 * low:.2f} to "
            f"{100 * high:.2f}), {100 * self.trial.asked[model]:g} % asked"
        )

    def to_dict(self) -> dict[str, object]:
        """The answer as plain values: units in the names, ``None`` where a figure has no value."""
        bound = self.bound
        return {
            "schema": _SCHEMA,
            "system": self.system,
            "gpu": self.scenario.gpu.kind,
            "gpus": self.gpus,
            "lower_bound": {
                "gpus": bound.gpus,
                "area": bound.area.accelerators,
                "configuration": bound.configuration.accelerators,
                "gathering": bound.gathering.accelerators,
                "memory": bound.memory.accelerators,
                "excluded": bound.excluded,
            },
            "gap": self.gap if self.served else None,
            "cost_per_hour": self.cost_per_hour,
            "planning_s": self.planning_s,
            "kept": self.kept,
            "trial": {
                "requests": self.trial.requests,
                "load": self.trial.load,
                "seeds": self.trial.seeds,
                "parts": self.trial.parts,
                "parts_tried": self.trial.parts_tried,
            },
            "memory_bytes": self.memory_bytes,
            "moves": None if self.moved is None else self.moved._asdict(),
            "partitions": self.plan.partitions,
            "models": {one.model: self._model(one.model) for one in self.scenario.demand},
            "apps": {
                app: {
                    s.stage: s._asdict() | {"cost": _finite(s.cost), "bound": _finite(s.bound)}
                    for s in stages
                }
                for app, stages in self.scenario.stages.items()
            },
            "apps_tried": {app: self._tried(app) for app in self.scenario.apps},
            "unserved_rows_per_s": {
                k: _finite(v) for k, v in self.plan.unserved_rows_per_s.items()
            },
            "reasons": self.plan.reasons,
            "headroom": None if self.plan.headroom is None else _finite(self.plan.headroom),
            "left_out": self.scenario.left_out,
            "said": self.sentences(),
        }

    def to_json(self) -> str:
        """``to_dict`` as indented JSON."""
        return json_text(self.to_dict())

    def __repr__(self) -> str:
        state = "kept" if self.kept else "not kept"
        models = counted(len(self.scenario.demand), "model")
        return (
            f"<CapacityPlan: {self.gpus} {self.scenario.gpu.kind} for {models} by {self.system}, "
            f"at least {self.bound.gpus} needed, SLOs {state}>"
        )

    def _repr_html_(self) -> str:
        """Return the figures of each model as a table, for notebooks."""
        rows = {
            one.model: {
                "requests/s": f"{one.rows_per_s:.1f}",
                "SLO ms": f"{one.slo_ms:g}",
                "in SLO %": f"{100 * tried.attainment:.2f}" if tried is not None else "-",
            }
            for one in self.scenario.demand
            for tried in [self.trial.models.get(one.model)]
        }
        return html_table(repr(self), "model", rows)

    def draw(self, path: Path | str) -> None:
        """Draw the partitions into an .svg or .png file.

        Raises:
            InputError: the path has another suffix.
            OSError: the file cannot be written.
        """
        from interlace.planning.drawing import draw_plan  # which needs this module

        draw_plan(self, Path(path))

    def save(self, path: Path | str) -> None:
        """Keep the plan in a file, for ``interlace serve --plan`` and ``interlace.serve``.

        Raises:
            OSError: the file cannot be written.
        """
        save_plan(Path(path), self.system, self.scenario.gpu, self.plan)

    def _gap_text(self) -> str:
        if not self.served:
            return "not comparable, since part of the demand is not served"
        extra = self.gpus - self.bound.gpus
        text = (
            "none: this is the fewest there can be" if extra <= 0 else f"{extra} ({self.gap:.2f}x)"
        )
        estimated = any(one.estimated for one in self.scenario.profiles.values())
        return f"{text}, if the estimates hold" if estimated else text

    def _model(self, model: str) -> dict[str, object]:
        asked = next(one for one in self.scenario.demand if one.model == model)
        return {
            "rate_rps": asked.rows_per_s,
            "slo_ms": asked.slo_ms,
            "attainment_wanted": asked.attainment,
            "cv": asked.cv,
            **self._tried(model),
            "price_gpus_per_rps": self.bound.best.price.get(model),
        }

    def _tried(self, name: str) -> dict[str, object]:
        """What became of the requests of a model or an app in the trial."""
        tried = self.trial.models.get(name)
        return {
            "sent": 0 if tried is None else tried.sent,
            "in_time": 0 if tried is None else tried.in_time,
            "p99_ms": None if tried is None else _finite(tried.p99_ms),
            "attainment": None if tried is None else tried.attainment,
            "attainment_interval": None if tried is None else tried.interval(),
        }


def plan(
    scenario: Scenario | Path | str,
    *,
    system: str | System = "interlace",
    bound: LowerBound | None = None,
    current: Plan | None = None,
    on_trial: Callable[[CapacityPlan], None] = lambda found: None,
) -> CapacityPlan:
    """The fewest accelerators that serve a scenario within its SLOs, and how each is cut.

    A scenario ``as_given`` is planned as a server would plan its accelerator.
    ``scenario`` may be the path of a scenario file (docs/planning.md). ``system`` says who plans: a
    name of the catalog, or a row of one's own. A ``bound`` that is known already, of the same
    scenario, is not worked out again. No accelerator is needed: the plan is tried in virtual time
    (``planning.plan_search``). With a ``current`` plan as few partitions move as can be.
    ``on_trial`` is called with each plan of a search before it is tried: its trial is empty.

    What cannot be served is no error: it is in ``plan.unserved_rows_per_s`` of the answer, its
    reason in ``plan.reasons``; promises that break in the trial are in ``trial.broken``.

    Example::

        found = interlace.plan("examples/planning/nine.toml")
        print(found.gpus, found.bound.gpus, found.trial.models["vgg"].p99_ms)

    Raises:
        InputError: the file is not a scenario, or there is no such system; what is expected.
    """
    if not isinstance(scenario, Scenario):
        scenario = read_scenario(scenario)
    row = system_of(system)
    known = bound or lower_bound(scenario.demand, scenario.gpu, scenario.profiles)
    began_s = perf_counter()

    def trying(made: Plan, fleet: Fleet) -> None:
        took_s = perf_counter() - began_s
        on_trial(CapacityPlan(scenario, row.name, made, fleet, known, PlanTrial({}, {}), took_s))

    if scenario.as_given:
        made = given_plan(scenario, row, current, usable_cores())
    else:
        made = search_plan(scenario, row, known.gpus, current, usable_cores(), trying)
    took_s = perf_counter() - began_s
    moved = None if current is None else moves(current.partitions, made.plan.partitions)
    return CapacityPlan(scenario, row.name, made.plan, made.fleet, known, made.trial, took_s, moved)


def _some(names: Sequence[str]) -> str:
    more = f" and {len(names) - _MOST_NAMES} more" if len(names) > _MOST_NAMES else ""
    return f"{', '.join(names[:_MOST_NAMES])}{more}"


def _finite(value: float) -> float | None:
    return value if isfinite(value) else None
