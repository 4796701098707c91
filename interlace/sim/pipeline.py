"""Apps of several models: the graph of an app, its deadlines, and its requests under way."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from random import Random
from typing import Final

from interlace.core.plan import Demand
from interlace.core.request import Outcome, Reply, Request
from interlace.runtime.runtime import Runtime
from interlace.sim.record import AppServed

#: The time in ms that each stage may take, by name; no path through an app takes more than its SLO.
Split = Callable[["Pipeline"], Mapping[str, float]]


@dataclass(frozen=True, slots=True)
class PipelineStage:
    """One model's part in an app.

    Without parents it gets ``fan`` requests when the app's request arrives, with one as many for
    each of the parent's requests, once that is answered. With several it waits until all requests
    of all of them are, and gets ``fan`` in all. A fraction is a chance: 2.5 is two or three.
    """

    name: str
    model: str
    after: tuple[str, ...] = ()
    fan: float = 1.0


def even(pipeline: Pipeline) -> Mapping[str, float]:
    """Every stage of the longest chain has the same time; so has each of the others."""
    return ByWork(dict.fromkeys((stage.name for stage in pipeline.stages), 1.0))(pipeline)


@dataclass(frozen=True, slots=True)
class ByWork:
    """Time in proportion to ``work`` (ms alone, say) along the longest path through each stage."""

    work: Mapping[str, float]

    def __call__(self, pipeline: Pipeline) -> Mapping[str, float]:
        until = {name: 0.0 for name in self.work}
        for stage in pipeline.stages:
            before = max((until[parent] for parent in stage.after), default=0.0)
            until[stage.name] = before + self.work[stage.name]
        beyond = {name: 0.0 for name in self.work}
        for stage in reversed(pipeline.stages):
            for parent in stage.after:
                longest = beyond[stage.name] + self.work[stage.name]
                beyond[parent] = max(beyond[parent], longest)
        return {
            name: pipeline.slo_ms * self.work[name] / (until[name] + beyond[name])
            for name in (stage.name for stage in pipeline.stages)
        }


@dataclass(frozen=True, slots=True)
class Pipeline:
    """Stages, parents before children, whose answers an app needs within ``slo_ms`` in all.

    Raises:
        ValueError: two stages of one name, a parent that is not before its child, a fan below 0.
    """

    stages: tuple[PipelineStage, ...]
    slo_ms: float
    split: Split = even

    def __post_init__(self) -> None:
        seen: set[str] = set()
        for stage in self.stages:
            if stage.name in seen:
                raise ValueError(f"two stages are named '{stage.name}'")
            for parent in stage.after:
                if parent not in seen:
                    raise ValueError(
                        f"stage '{stage.name}' is after '{parent}', not among those before"
                    )
            if stage.fan < 0:
                raise ValueError(f"stage '{stage.name}' has a fan of {stage.fan:g}; expected >= 0")
            seen.add(stage.name)
        if not self.stages:
            raise ValueError("an app has at least one stage")

    def ends_ms(self) -> Mapping[str, float]:
        """By when each stage must be answered, in ms after the app's request arrived.

        As late as leaves those that follow their time: the last ones have all of the SLO, and what
        a stage leaves of its time goes to those after it.
        """
        time_ms = self.split(self)
        ends = {stage.name: self.slo_ms for stage in self.stages}
        for stage in reversed(self.stages):
            for parent in stage.after:
                ends[parent] = min(ends[parent], ends[stage.name] - time_ms[stage.name])
        return ends

    def rates(self) -> Mapping[str, float]:
        """Requests of each stage for one of the app, on average."""
        found: dict[str, float] = {}
        for stage in self.stages:
            times = found[stage.after[0]] if len(stage.after) == 1 else 1.0
            found[stage.name] = stage.fan * times
        return found


def demands(apps: Mapping[str, Pipeline], rates_rps: Mapping[str, float]) -> tuple[Demand, ...]:
    """What apps ask of their models: requests of all stages, within the shortest stage's time.

    ``rates_rps`` are requests/s of each app.
    """
    rps: dict[str, float] = {}
    slos_ms: dict[str, float] = {}
    for name, app in apps.items():
        ends, rates = app.ends_ms(), app.rates()
        for stage in app.stages:
            begins_ms = max((ends[parent] for parent in stage.after), default=0.0)
            slo_ms = ends[stage.name] - begins_ms
            rps[stage.model] = rps.get(stage.model, 0.0) + rates_rps[name] * rates[stage.name]
            slos_ms[stage.model] = min(slos_ms.get(stage.model, slo_ms), slo_ms)
    return tuple(Demand(model, rate, slos_ms[model]) for model, rate in rps.items())


_ANSWERED: Final = frozenset({Outcome.OK, Outcome.LATE})


class PipelineRunner:
    """Takes requests of apps, and sends those of their models to a runtime.

    A request has what its app leaves it: the deadline is the stage's end counted from the app's
    arrival, however early or late those before it were. After a failure nothing more of that app is
    sent; what is under way runs on. How many requests a stage gets is drawn for each picture, not
    for each run: equal for every system that plays the same trace.
    """

    def __init__(self, runtime: Runtime, pipelines: Mapping[str, Pipeline]) -> None:
        self._runtime = runtime
        self._pipelines = pipelines
        self._ends_ms = {name: one.ends_ms() for name, one in pipelines.items()}
        self._begun = dict.fromkeys(pipelines, 0)
        self.served: list[AppServed] = []

    def begin(self, app: str) -> None:
        """An app's request arrives now."""
        number = self._begun[app]
        self._begun[app] += 1
        one = _AppRequest(app, f"{app}/{number}", self._runtime.clock.now_ms())
        for stage in self._pipelines[app].stages:
            if not stage.after:
                self._ask(one, stage, "")
        self._go_on(one)

    def _ask(self, one: _AppRequest, stage: PipelineStage, path: str) -> None:
        """Send a stage's requests: those of one request of its parent, known by its path."""
        deadline_ms = one.arrived_ms + self._ends_ms[one.app][stage.name]
        seed = f"{one.seed}/{stage.name}{path}"
        for index in range(_count(stage.fan, seed)):
            one.open[stage.name] = one.open.get(stage.name, 0) + 1
            one.requests += 1
            now_ms = self._runtime.clock.now_ms()
            request = Request(self._runtime.next_id(), stage.model, now_ms, deadline_ms)
            place = f"{path}.{index}"

            def answered(reply: Reply, place: str = place) -> None:
                self._runtime.delivered(reply)
                one.answered(reply, self._runtime.clock.now_ms())
                # Not from inside the answer: the engine's other commands come first.
                self._runtime.clock.call_soon(lambda: self._follow(one, stage, place))

            self._runtime.submit(request, answered)

    def _follow(self, one: _AppRequest, stage: PipelineStage, path: str) -> None:
        """A request of ``stage`` was answered: whoever waited for just that one is asked."""
        one.open[stage.name] -= 1
        pipeline = self._pipelines[one.app]
        for child in pipeline.stages:
            if child.after == (stage.name,):
                if self._has_time(one):
                    self._ask(one, child, path)
                else:
                    one.expire()
        self._go_on(one)

    def _go_on(self, one: _AppRequest) -> None:
        """Ask those who wait for several, and end what has nothing more to come."""
        pipeline = self._pipelines[one.app]
        for stage in pipeline.stages:
            waits = len(stage.after) > 1 and stage.name not in one.joined
            if waits and all(one.complete(parent, pipeline) for parent in stage.after):
                one.joined.add(stage.name)
                if self._has_time(one):
                    self._ask(one, stage, "")
                else:
                    one.expire()
        if not any(one.open.values()) and not one.ended:
            one.ended = True
            self.served.append(one.result(one.arrived_ms + pipeline.slo_ms))

    def _has_time(self, one: _AppRequest) -> bool:
        deadline_ms = one.arrived_ms + self._pipelines[one.app].slo_ms
        return one.failed is None and self._runtime.clock.now_ms() <= deadline_ms


@dataclass(slots=True)
class _AppRequest:
    """An app's request under way; ``open`` counts unanswered requests by stage."""

    app: str
    seed: str
    arrived_ms: float
    open: dict[str, int] = field(default_factory=dict)
    joined: set[str] = field(default_factory=set)
    requests: int = 0
    failed: Outcome | None = None
    last_ms: float = 0.0
    ended: bool = False

    def answered(self, reply: Reply, now_ms: float) -> None:
        self.last_ms = now_ms
        if reply.outcome not in _ANSWERED and self.failed is None:
            self.failed = reply.outcome

    def expire(self) -> None:
        """There is no time for what would follow."""
        if self.failed is None:
            self.failed = Outcome.EXPIRED

    def complete(self, name: str, pipeline: Pipeline) -> bool:
        """True if a stage has all its answers, and gets no more requests."""
        (stage,) = [one for one in pipeline.stages if one.name == name]
        if len(stage.after) > 1 and name not in self.joined:
            return False
        return not self.open.get(name) and all(self.complete(p, pipeline) for p in stage.after)

    def result(self, deadline_ms: float) -> AppServed:
        ended_ms = max(self.last_ms, self.arrived_ms)
        late = Outcome.LATE if ended_ms > deadline_ms else Outcome.OK
        outcome = self.failed or late
        return AppServed(self.app, self.arrived_ms, deadline_ms, ended_ms, outcome, self.requests)


def _count(fan: float, seed: str) -> int:
    """``fan`` rounded up or down, at random where it is no whole number."""
    whole = int(fan)
    if fan == whole:
        return whole
    return whole + (Random(seed).random() < fan - whole)
