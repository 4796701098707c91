"""Comparison 3 through devices: what processes share, on MPS and in the one process of green.

Param-Share (primitives paper, Table II): memory and load time of an instance with weights of its
own, with weights opened over CUDA IPC from the process that has them, and as a lane of the process
that has them. Multi-Model: two models in lanes of one process, against a process each.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, Final

from bench.fidelity.measured import half_pct
from bench.fidelity.stand import Stand
from bench.gpu.bench import Bench
from bench.gpu.lanes import quantile
from bench.gpu.mechanisms.published import MORE_INSTANCES, T4_BYTES
from bench.gpu.mechanisms.sides import Published, Side, versus
from bench.gpu.nvml import used_bytes
from bench.gpu.opened import on_each
from bench.gpu.rows import Row, seen
from bench.harness import processes
from interlace.core.messages import CreatePartition, Load, ReleasePartition
from interlace.core.model import Model
from interlace.profiling.corun import Interval
from interlace.profiling.corun_partitions import at_once, keep_busy
from interlace.profiling.samples import SampleInputs

_MODELS: Final = ("resnet50", "vgg19", "resnext50")
_NAMES: Final = ("first", "second")
_LIMIT_S: Final = 60.0
_ROWS: Final = 8
_FIRST: Final = "begun"
_PAUSE_S: Final = 0.2
_SETTLE_S: Final = 5.0


@dataclass(slots=True)
class Found:
    """One device: what a partition takes, what each model takes in the first and in the second,
    and how the first two models ran side by side."""

    carve_bytes: list[int] = field(default_factory=list)
    load_bytes: dict[str, list[int]] = field(default_factory=dict)
    load_ms: dict[str, list[float]] = field(default_factory=dict)
    beside: Side | None = None

    def instance(self, name: str, place: int) -> Side:
        """What the first or the second instance of a model takes, its partition included."""
        nbytes = self.carve_bytes[place] + self.load_bytes[name][place]
        return {"nbytes": float(max(0, nbytes)), "load_ms": self.load_ms[name][place]}


async def rows(bench: Bench) -> AsyncIterator[Row]:
    """A row a model and way to share, then two models side by side."""
    found: dict[str, Found] = {}

    async def ask(opened: Stand, kind: str) -> AsyncIterator[Row]:
        with used_bytes(bench) as used:
            now = found[kind] = await looked(bench, opened, used)
        words = ", ".join(f"{nbytes / 2**20:.0f} MiB" for nbytes in now.carve_bytes)
        yield seen(f"memory of empty partitions ({kind})", words, nbytes=now.carve_bytes)

    async for row in on_each(bench, ("mps", "green"), _MODELS, ask):
        yield row
    for row in told(found):
        yield row


async def looked(bench: Bench, opened: Stand, used: Callable[[], int]) -> Found:
    """Both partitions with every model in both, then two models that run side by side."""
    found, gpu, rig = Found(), opened.device.gpu, opened.rig
    share_pct, pause_s = half_pct(gpu), bench.size(_PAUSE_S, 0.0)
    await _begun(opened, share_pct)
    before = await settled(used, pause_s)
    for name in _NAMES:
        await rig.do(CreatePartition(gpu.id, name, share_pct), _LIMIT_S)
        after = await settled(used, pause_s)
        found.carve_bytes.append(after - before)
        before = after
    for model in opened.models():
        for name in _NAMES:
            done = await rig.do(Load(gpu.id, name, model.key, (_rows_of(model),)), _LIMIT_S)
            after = await settled(used, pause_s)
            found.load_bytes.setdefault(model.name, []).append(after - before)
            found.load_ms.setdefault(model.name, []).append(done.took_ms)
            before = after
    found.beside = await side_by_side(opened, opened.models()[:2], bench.size(1.0, 0.1), before)
    for name in _NAMES:
        await rig.do(ReleasePartition(gpu.id, name), _LIMIT_S)
    return found


async def _begun(opened: Stand, share_pct: int) -> None:
    """Start what a device starts once: a load is lent its weights by the process that keeps them,
    so that one is there as well, and its own memory counts to nobody."""
    gpu, model = opened.device.gpu.id, opened.models()[0]
    await opened.rig.do(CreatePartition(gpu, _FIRST, share_pct), _LIMIT_S)
    await opened.rig.do(Load(gpu, _FIRST, model.key, (1,)), _LIMIT_S)
    await opened.rig.do(ReleasePartition(gpu, _FIRST), _LIMIT_S)


async def settled(used: Callable[[], int], pause_s: float) -> int:
    """Memory in use once it changes no more: processes come and go a little later than told."""
    end_s = time.monotonic() + _SETTLE_S
    before, now = None, used()
    while before != now and time.monotonic() < end_s:
        await asyncio.sleep(pause_s)
        before, now = now, used()
    return now


def _rows_of(model: Model) -> int:
    return min(_ROWS, model.signature.max_batch)


async def side_by_side(opened: Stand, models: list[Model], seconds: float, nbytes: int) -> Side:
    """A model in each partition, both back to back: of all batches together."""
    inputs = [SampleInputs(model, opened.arena) for model in models]
    sides = list(zip(_NAMES, models, inputs, strict=False))
    try:
        before_s = cpu_s(opened)
        runs = await at_once(
            keep_busy(opened.rig, name, one, _rows_of(model), seconds) for name, model, one in sides
        )
        spent_s = cpu_s(opened) - before_s
    finally:
        for one in inputs:
            one.release()
    took_ms = [run.took_ms for each in runs for run in each]
    done = sum(len(each) * _rows_of(model) for each, model in zip(runs, models, strict=True))
    return {
        "p50_ms": quantile(took_ms, 0.5),
        "p99_ms": quantile(took_ms, 0.99),
        "rps": done / _span_s([run for each in runs for run in each]),
        "cpu_ms": 1000.0 * spent_s / len(took_ms),
        "nbytes": float(max(0, nbytes)),
    }


def _span_s(runs: list[Interval]) -> float:
    began = min(run.began_ms for run in runs)
    return (max(run.ended_ms for run in runs) - began) / 1000.0


def cpu_s(opened: Stand) -> float:
    """CPU time of this process and of the device's own so far."""
    device: Any = opened.device  # every device of processes tells them
    return processes.cpu_s({os.getpid(), *device.workers().values()})


def told(found: dict[str, Found]) -> Iterator[Row]:
    """The rows of what was found on either device."""
    mps, green = found.get("mps"), found.get("green")
    if mps is None:
        return
    for name in mps.load_ms:
        yield _instances(
            name, "an MPS instance over IPC", mps.instance(name, 1), mps.instance(name, 0)
        )
        if green is not None:
            yield _instances(name, "a lane", green.instance(name, 1), mps.instance(name, 0))
    if green is not None and green.beside is not None and mps.beside is not None:
        what = "Multi-Model: two models in lanes of a process, over a process each"
        yield versus(what, green.beside, mps.beside, "rps")


def _instances(name: str, way: str, shared: Side, own: Side) -> Row:
    """Memory of one more instance, and how many a T4's 16 GB would hold: Table II."""
    alone = _fit(own["nbytes"], own["nbytes"])
    more = _fit(own["nbytes"], shared["nbytes"]) - alone
    published = MORE_INSTANCES.get(name)
    gain = None
    if published is not None and alone:
        gain = Published(f"primitives, Table II, {published} more in a T4", 1 + published / alone)
    return versus(
        f"Param-Share: {name}, {way}, over weights of its own", shared, own, "nbytes", gain,
        own_in_16_gb=alone, more_in_16_gb=more, published_more=published,
    )  # fmt: skip


def _fit(first: float, each: float) -> int:
    """Instances in 16 GB: one that brings the weights, and others."""
    if first <= 0 or each <= 0 or first > T4_BYTES:
        return 0
    return 1 + int((T4_BYTES - first) // each)
