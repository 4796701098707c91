"""What a change of plan costs, read from the event stream: models without a host, idle shares."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Final, NamedTuple

from interlace.core.messages import (
    Carve,
    Command,
    Event,
    Finished,
    Left,
    Load,
    Lost,
    Release,
    Run,
    Unload,
    Withdrawn,
)

_OPEN: Final = float("inf")


class Gap(NamedTuple):
    """A time at which a model that is served had no partition that would take its requests."""

    model: str
    from_ms: float
    until_ms: float


class Change(NamedTuple):
    """A time at which an accelerator was being reorganised without a break.

    ``idle_ms`` is accelerator time that served nobody: the share missing from what stood before or
    after, whichever is less, times how long.
    """

    gpu: str
    from_ms: float
    until_ms: float
    idle_ms: float


@dataclass(slots=True)
class _Home:
    """A model in a partition that takes requests for it, from when to when."""

    gpu: str
    partition: str
    share_pct: int
    model: str
    from_ms: float
    until_ms: float = _OPEN
    closed_ms: float = _OPEN  #: when its end was first to be seen in the stream


@dataclass(slots=True)
class Gaps:
    """An observer of a runtime, live or simulated.

    When a partition stops to take requests is not in the stream; it is told at the latest by the
    unloading or release of it. If that waited for a batch, the batch's start is taken: no later
    batch began, so the gap found is never too short.
    """

    _homes: list[_Home] = field(default_factory=list)
    _shares: dict[str, tuple[str, int]] = field(default_factory=dict)
    _runs_ms: dict[str, float] = field(default_factory=dict)
    _pending: dict[tuple[str, str, str], float] = field(default_factory=dict)
    _work: list[tuple[str, float, float]] = field(default_factory=list)
    _withdrawn_ms: dict[str, float] = field(default_factory=dict)
    _now_ms: float = 0.0

    def __call__(self, now_ms: float, event: Event, commands: Sequence[Command]) -> None:
        self._now_ms = now_ms
        ended = self._event(event, now_ms)
        for command in commands:
            match command:
                case Run(partition=partition):
                    self._runs_ms[partition] = now_ms
                case Carve(gpu=gpu, partition=partition, share_pct=share_pct):
                    self._shares[partition] = (gpu, share_pct)
                    self._pending[(gpu, partition, "")] = now_ms
                case Load(gpu=gpu, partition=partition, model=model):
                    self._pending[(gpu, partition, model)] = now_ms
                case Unload(gpu=gpu, partition=partition, model=model):
                    self._pending[(gpu, partition, model)] = now_ms
                    self._close(partition, model, ended, now_ms)
                case Release(gpu=gpu, partition=partition):
                    self._pending[(gpu, partition, "")] = now_ms
                    self._close(partition, None, ended, now_ms)
                case _:
                    pass

    def gaps(self) -> list[Gap]:
        """Times between the first and the last home of each model when it had none."""
        found: list[Gap] = []
        for model in dict.fromkeys(home.model for home in self._homes):
            end_ms = self._withdrawn_ms.get(model, self._now_ms)
            covered_ms: float | None = None
            for home in sorted(
                (one for one in self._homes if one.model == model), key=lambda one: one.from_ms
            ):
                if covered_ms is not None and covered_ms < min(home.from_ms, end_ms):
                    found.append(Gap(model, covered_ms, min(home.from_ms, end_ms)))
                covered_ms = max(covered_ms or 0.0, home.until_ms)
            if covered_ms is not None and covered_ms < end_ms:
                found.append(Gap(model, covered_ms, end_ms))
        return found

    def changes(self) -> list[Change]:
        """Every reorganisation of every accelerator, in order of time."""
        return [self._change(*one) for one in self._merged()]

    def _event(self, event: Event, now_ms: float) -> tuple[str, float] | None:
        """Enter an event; if a batch ended, its partition and when it began."""
        match event:
            case Finished(work=Run(partition=partition)):
                return partition, self._runs_ms.pop(partition, now_ms)
            case Finished(work=work, failure=failure):
                model = work.model if isinstance(work, Load | Unload) else ""
                began_ms = self._pending.pop((work.gpu, work.partition, model), None)
                if began_ms is not None:
                    self._work.append((work.gpu, began_ms, now_ms))
                if isinstance(work, Load) and failure is None:
                    gpu, share_pct = self._shares[work.partition]
                    home = _Home(gpu, work.partition, share_pct, work.model, now_ms)
                    self._homes.append(home)
            case Lost(partition=partition):
                self._close(partition, None, None, now_ms)
            case Left(gpu=gpu):
                for partition, (where, _) in self._shares.items():
                    if where == gpu:
                        self._close(partition, None, None, now_ms)
            case Withdrawn(model=model):
                self._withdrawn_ms.setdefault(model, now_ms)
            case _:
                pass
        return None

    def _close(
        self, partition: str, model: str | None, ended: tuple[str, float] | None, now_ms: float
    ) -> None:
        at_ms = ended[1] if ended is not None and ended[0] == partition else now_ms
        for home in self._homes:
            open_there = home.partition == partition and home.until_ms == _OPEN
            if open_there and model in (None, home.model):
                home.until_ms, home.closed_ms = max(home.from_ms, at_ms), now_ms

    def _merged(self) -> Iterator[tuple[str, float, float]]:
        """Times of work on each accelerator, those that touch joined to one."""
        merged: list[tuple[str, float, float]] = []
        for gpu in dict.fromkeys(gpu for gpu, _, _ in self._work):
            times = sorted((begin, end) for name, begin, end in self._work if name == gpu)
            start_ms, until_ms = times[0]
            for begin_ms, end_ms in times[1:]:
                if begin_ms > until_ms:
                    merged.append((gpu, start_ms, until_ms))
                    start_ms = begin_ms
                until_ms = max(until_ms, end_ms)
            merged.append((gpu, start_ms, until_ms))
        return iter(sorted(merged, key=lambda one: one[1]))

    def _change(self, gpu: str, from_ms: float, until_ms: float) -> Change:
        homes = [one for one in self._homes if one.gpu == gpu]
        before = [h for h in homes if h.from_ms <= from_ms <= h.closed_ms]
        # What ended with a batch was closed when that began, a little before the first work.
        from_ms = min([from_ms, *(h.until_ms for h in before)])
        marks = {from_ms, until_ms}
        marks |= {t for h in homes for t in (h.from_ms, h.until_ms) if from_ms < t < until_ms}
        least_pct = min(100, _shares_pct(before), _standing_pct(homes, until_ms))
        idle_ms = sum(
            max(0, least_pct - _standing_pct(homes, begin)) / 100.0 * (end - begin)
            for begin, end in pairwise(sorted(marks))
        )
        return Change(gpu, from_ms, until_ms, idle_ms)


def _standing_pct(homes: Sequence[_Home], at_ms: float) -> int:
    """The shares that take requests at a time."""
    return _shares_pct([h for h in homes if h.from_ms <= at_ms < h.until_ms])


def _shares_pct(homes: Sequence[_Home]) -> int:
    """Shares of partitions, each counted once however many models are in it."""
    return sum({home.partition: home.share_pct for home in homes}.values())
