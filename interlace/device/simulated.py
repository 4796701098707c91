"""An accelerator made of profiles and a clock: the truth that planners' beliefs are tried on."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from interlace.core.hardware import Gpu
from interlace.core.messages import (
    Carve,
    Failure,
    Finished,
    Load,
    Lost,
    Release,
    Run,
    Unload,
    Work,
)
from interlace.core.model import Model
from interlace.core.profile import Profiles
from interlace.core.request import Timing
from interlace.device.base import Done
from interlace.perf.latency import Surface, surface


class Timer(Protocol):
    """The part of a clock that a simulated device needs."""

    def now_ms(self) -> float: ...
    def call_at(self, at_ms: float, call: Callable[[], None]) -> None: ...


@dataclass(frozen=True, slots=True)
class Costs:
    """What reorganising costs on this mechanism, in ms."""

    carve_ms: float = 100.0
    release_ms: float = 1.0
    unload_ms: float = 1.0


class SimulatedDevice:
    """Executes work in virtual time; partitions side by side, work inside one in order."""

    def __init__(self, gpu: Gpu, timer: Timer, truth: Profiles, costs: Costs | None = None) -> None:
        self.gpu: Gpu = gpu
        self._timer = timer
        self._truth = truth
        self._costs = costs or Costs()
        self._surfaces: dict[str, Surface] = {}
        self._shares: dict[str, int] = {}
        self._loaded: dict[str, set[str]] = {}
        self._free_at_ms: dict[str, float] = {}
        self._pending: dict[str, list[tuple[Work, Done]]] = {}
        self._lost: Callable[[Lost], None] = lambda lost: None
        self._closed = False

    def register(self, model: Model) -> None:
        """Nothing to read: a simulated model is its profile."""

    def forget(self, key: str) -> None:
        self._surfaces.pop(key, None)

    def free(self, batch: int) -> None:
        """Nothing to reuse: simulated outputs hold no bytes."""

    def on_lost(self, lost: Callable[[Lost], None]) -> None:
        self._lost = lost

    def do(self, work: Work, done: Done) -> None:
        name = work.partition
        refusal = self._refusal(work)
        if refusal is not None:
            failed = Finished(work, failure=Failure(refusal))
            self._timer.call_at(self._timer.now_ms(), lambda: done(failed))
            return
        self._enter(work)
        start_ms = max(self._timer.now_ms(), self._free_at_ms.get(name, 0.0))
        end_ms = start_ms + self._cost_ms(work)
        self._free_at_ms[name] = end_ms
        entry = (work, done)
        self._pending.setdefault(name, []).append(entry)
        self._timer.call_at(end_ms, lambda: self._end(name, entry))

    def kill(self, partition: str, detail: str = "killed") -> None:
        """Inject the death of a partition: what it holds fails, then it is lost."""
        held = self._pending.pop(partition, [])
        # First gone, then told of: work that is sent in answer must find no partition.
        self._forget_partition(partition)
        for work, done in held:
            done(Finished(work, failure=Failure(detail, fatal=True)))
        self._lost(Lost(self.gpu.id, partition, detail))

    def close(self) -> None:
        """Fail what is unfinished."""
        self._closed = True
        for entries in list(self._pending.values()):
            for work, done in entries:
                done(Finished(work, failure=Failure("the device is closed")))
        self._pending.clear()
        self._loaded.clear()

    def _refusal(self, work: Work) -> str | None:
        """Why this work is impossible after all that was asked before it."""
        name = work.partition
        if self._closed:
            return f"{self.gpu.id} is closed"
        if isinstance(work, Carve):
            if name in self._shares:
                return f"partition '{name}' of {self.gpu.id} exists already"
            if work.share_pct not in self.gpu.shares_pct:
                return f"a share of {work.share_pct} %: expected one of {self.gpu.shares_pct}"
            return None
        if name not in self._loaded:
            return f"no partition '{name}' on {self.gpu.id}"
        match work:
            case Load(model=model) if model not in self._truth:
                return f"{model} has no profile here"
            case Run(batch=batch) if batch.model not in self._loaded[name]:
                return f"model {batch.model} is not loaded in partition '{name}'"
        return None

    def _enter(self, work: Work) -> None:
        name = work.partition
        match work:
            case Carve(share_pct=share_pct):
                self._shares[name] = share_pct
                self._loaded[name] = set()
            case Load(model=model):
                self._loaded[name].add(model)
            case Unload(model=model):
                self._loaded[name].discard(model)
            case Release():
                del self._loaded[name]

    def _forget_partition(self, name: str) -> None:
        self._shares.pop(name, None)
        self._loaded.pop(name, None)
        self._free_at_ms.pop(name, None)

    def _end(self, name: str, entry: tuple[Work, Done]) -> None:
        entries = self._pending.get(name, [])
        if entry not in entries:
            return  # died or was closed meanwhile
        entries.remove(entry)
        work, done = entry
        if isinstance(work, Release):
            self._forget_partition(name)
        done(self._result(work))

    def _result(self, work: Work) -> Finished:
        match work:
            case Run(batch=batch):
                outputs = tuple(() for _ in batch.requests)
                return Finished(work, outputs, timing=Timing(infer_ms=self._cost_ms(work)))
            case Load(model=model):
                return Finished(work, resident_bytes=self._truth[model].weights_bytes)
            case Carve(share_pct=share_pct):
                count = max(1, self.gpu.units * share_pct // 100)
                return Finished(work, units=tuple(range(count)))
            case _:
                return Finished(work)

    def _cost_ms(self, work: Work) -> float:
        match work:
            case Run(batch=batch, partition=name):
                known = self._surface(batch.model)
                return known.latency_ms(batch.rows, self._shares[name]) if known else 0.0
            case Carve():
                return self._costs.carve_ms
            case Load(model=model):
                return self._truth[model].load_ms
            case Unload():
                return self._costs.unload_ms
            case Release():
                return self._costs.release_ms

    def _surface(self, model: str) -> Surface | None:
        if model not in self._surfaces and model in self._truth:
            self._surfaces[model] = surface(self._truth[model], "median_ms")
        return self._surfaces.get(model)
