"""Sync-lite: AlexNet and ResNet-50, one row, the end learnt from a flag or in other ways."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from bench.gpu.bench import Bench
from bench.gpu.checks.completion import Known, timed
from bench.gpu.completions import KINDS, Kind
from bench.gpu.lanes import lanes
from bench.gpu.mechanisms.nets import network
from bench.gpu.mechanisms.published import IDLE, SYNC_LITE
from bench.gpu.mechanisms.sides import Published, Side, side, versus
from bench.gpu.rows import Row
from interlace.device.cuda.backend.base import CudaBackend

_ON: Final[Kind] = "flags"
_NETS: Final = ("alexnet", "resnet50")


def rows(bench: Bench, backend: CudaBackend) -> Iterator[Row]:
    """Flags against each other way, for both networks (Figures 6a and 6b)."""
    with lanes(backend.driver) as cut:
        lane = cut.plain()
        for name in _NETS:
            body = network(bench, backend.torch_device, name, 1).body()
            sides: dict[Kind, Side] = {}
            for kind in KINDS:
                known = timed(bench, backend, lane, body, kind, bench.size(200, 3))
                sides[kind] = _side(known)
            for kind in KINDS:
                if kind != _ON:
                    yield from _compared(name, kind, sides)


def _side(known: Known) -> Side:
    """Latency, rate, the process's CPU time, and how long the GPU idles for each batch."""
    mean_ms = sum(known.took_ms) / len(known.took_ms)
    idle_ms = max(0.0, mean_ms - known.gpu_ms)
    return side(known.took_ms, cpu_ms=known.cpu_ms, idle_ms=idle_ms)


def _compared(name: str, kind: Kind, sides: dict[Kind, Side]) -> Iterator[Row]:
    what, gain = f"Sync-lite: {name}, flags over {kind}", SYNC_LITE.get((name, kind))
    published = Published("primitives, Figure 6a", gain) if gain else None
    yield versus(what, sides[_ON], sides[kind], "p99_ms", published)
    if kind == "blocking":
        idle = Published("primitives, Figure 6b", IDLE[name])
        yield versus(f"{what}: GPU idle", sides[_ON], sides[kind], "idle_ms", idle)
