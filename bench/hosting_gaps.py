"""What a change of plan costs: models without a host, shares that stand idle."""

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import NamedTuple

from interlace.core.messages import Command, Event, RequestArrived, RequestCancelled, Woke
from interlace.engine.engine import Engine
from interlace.engine.snapshot import EngineSnapshot

Shares = Mapping[str, int]


class Gap(NamedTuple):
    """A time at which a model that is served had no partition that would take its requests."""

    model: str
    from_ms: float
    until_ms: float


class Change(NamedTuple):
    """A reorganisation, from the first difference between what is and what is wanted to none.

    ``idle_ms`` is accelerator time that served nobody: on each accelerator the share that is
    missing from what stood before or stands after, whichever is less, times how long.
    """

    from_ms: float
    until_ms: float
    idle_ms: float


class Gaps:
    """An observer of a runtime, live or simulated, or of a log that is read again.

    When a partition stops to take requests is the engine's own affair and in no event. But equal
    events make equal states, so a ``replica`` of the engine, built as the observed one was and
    given the same events, is looked into.
    """

    def __init__(self, replica: Engine) -> None:
        self._replica = replica
        self._hostless_ms: dict[str, float] = {}
        self._hosted: set[str] = set()
        self._episode: list[tuple[float, Shares]] = []
        self._stood: Shares = {}
        self._now_ms = 0.0
        self.gaps: list[Gap] = []
        self.changes: list[Change] = []

    def __call__(self, now_ms: float, event: Event, commands: Sequence[Command]) -> None:
        self._now_ms = now_ms
        self._replica.handle(event, now_ms)
        if not isinstance(
            event, RequestArrived | RequestCancelled | Woke
        ):  # those move no partition
            engine = self._replica.snapshot()
            self._look_at_models(engine, now_ms)
            self._look_at_shares(engine, now_ms)

    @property
    def open_gaps(self) -> list[Gap]:
        """Models that have no host now."""
        return [Gap(model, at_ms, self._now_ms) for model, at_ms in self._hostless_ms.items()]

    def _look_at_models(self, engine: EngineSnapshot, now_ms: float) -> None:
        models = {name: one for name, one in engine.models.items() if one.served}
        served = {name for name, one in models.items() if one.hosts or name in self._hosted}
        for model in self._hostless_ms.keys() - served:  # it left, or was given up
            self.gaps.append(Gap(model, self._hostless_ms.pop(model), now_ms))
        for model in served:
            if not models[model].hosts:
                self._hostless_ms.setdefault(model, now_ms)
            elif model in self._hostless_ms:
                self.gaps.append(Gap(model, self._hostless_ms.pop(model), now_ms))
        self._hosted = served

    def _look_at_shares(self, engine: EngineSnapshot, now_ms: float) -> None:
        shares = dict.fromkeys((gpu.id for gpu in engine.fleet.gpus), 0)
        for live in engine.partitions.values():
            if live.accepting and live.slots:
                shares[live.gpu] += live.share_pct
        if self._episode or not engine.reached:
            self._episode = self._episode or [(now_ms, self._stood)]
            self._episode.append((now_ms, shares))
            if engine.reached:
                self.changes.append(_change(self._episode))
                self._episode = []
        self._stood = shares


def _change(episode: Sequence[tuple[float, Shares]]) -> Change:
    (from_ms, before), (until_ms, after) = episode[0], episode[-1]
    idle_ms = 0.0
    for (begin_ms, shares), (end_ms, _) in pairwise(episode[1:]):
        for gpu in before.keys() & after.keys():
            missing_pct = min(100, before[gpu], after[gpu]) - shares.get(gpu, 0)
            idle_ms += max(0, missing_pct) / 100.0 * (end_ms - begin_ms)
    return Change(from_ms, until_ms, idle_ms)
