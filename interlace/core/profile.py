"""What was measured about one model on one kind of accelerator."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Point:
    """Latency of one (batch, share): quantiles in ms over ``samples`` executions."""

    median_ms: float
    p95_ms: float
    p99_ms: float
    samples: int


@dataclass(frozen=True, slots=True)
class Overhead:
    """What an execution costs beyond the model: from command to start, from end to being known."""

    launch_ms: float = 0.0
    wake_ms: float = 0.0

    @property
    def total_ms(self) -> float:
        return self.launch_ms + self.wake_ms


@dataclass(frozen=True, slots=True)
class Layer:
    """One layer's weights, copy time, run time, and run time with weights left on the host."""

    name: str
    weights_bytes: int
    copy_ms: float
    run_ms: float
    run_host_ms: float


@dataclass(frozen=True, slots=True)
class Profile:
    """Measured behaviour of ``model`` on ``gpu_kind``.

    ``points`` maps (batch rows, share_pct) to latency as the engine sees it: command to completion,
    overheads included. ``pressure`` maps the same key to (L2, DRAM) utilisation in 0..1.
    """

    model: str
    digest: str
    gpu_kind: str
    weights_bytes: int
    activation_bytes: int
    points: Mapping[tuple[int, int], Point]
    overhead: Overhead = Overhead()
    load_ms: float = 0.0
    pressure: Mapping[tuple[int, int], tuple[float, float]] = field(default_factory=dict)
    layers: tuple[Layer, ...] = ()


#: Profiles of one accelerator kind by deployment key.
Profiles = Mapping[str, Profile]
