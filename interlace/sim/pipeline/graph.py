"""An app as a graph of models: what follows what, and by when each must end."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from interlace.core.plan import Demand

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
