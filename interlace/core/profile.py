"""What was measured about one model on one kind of accelerator."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class LatencyPoint:
    """Latency of one (batch, share): quantiles in ms over ``samples`` executions.

    ``gpu_ms`` is the median of the GPU's own time, from the first kernel's begin to the last one's
    end; 0 where the device does not tell.
    """

    median_ms: float
    p95_ms: float
    p99_ms: float
    samples: int
    gpu_ms: float = 0.0


@dataclass(frozen=True, slots=True)
class LaunchOverhead:
    """What an execution costs beyond the model: from command to start, from end to being known."""

    launch_ms: float = 0.0
    wake_ms: float = 0.0

    @property
    def total_ms(self) -> float:
        return self.launch_ms + self.wake_ms


@dataclass(frozen=True, slots=True)
class LayerProfile:
    """One layer's weights, copy time, run time, and run time with weights left on the host.

    For one row, weights coming from DRAM or from the host and not from caches: as after a cold
    start (DeepPlan, section 4.3.1). Layers are in the order of execution. ``kind`` is what it is
    made of: a module's class ("Linear"), or an operator ("linear"); empty in older files.
    The ``copy_ms`` of a first layer without weights is what beginning a load takes of the cores.
    ``copy_disk_ms`` and ``run_disk_ms`` are the copy, and the run with weights left in their file,
    where the host has that on its disk only; 0 where that was not measured. ``core_ms`` is what a
    copy that is made while layers run takes of the cores that run them, beside waiting for a link.
    """

    name: str
    weights_bytes: int
    copy_ms: float
    run_ms: float
    run_host_ms: float
    kind: str = ""
    copy_disk_ms: float = 0.0
    run_disk_ms: float = 0.0
    core_ms: float = 0.0


@dataclass(frozen=True, slots=True)
class MemoryContention:
    """One (batch, share) beside a kernel that only reads ``what`` ("l2" or "dram").

    The reader has ``share_pct`` of the GPU. ``read`` is its rate beside the model and ``taken``
    what it lost to the model, both as parts of the largest rate that a reader reaches alone on the
    whole GPU; ``slowdown`` is what the model suffers, its latency over that alone.
    """

    what: str
    share_pct: int
    read: float
    taken: float
    slowdown: float


@dataclass(frozen=True, slots=True)
class Profile:
    """Measured behaviour of ``model`` on ``gpu_kind``.

    ``points`` maps (batch rows, share_pct) to latency as the engine sees it: command to completion,
    overheads included. ``pressure`` maps the same key to (L2, DRAM) utilisation in 0..1,
    ``strains`` to behaviour beside memory readers. ``cold_ms`` is one row with no weights
    resident, brought as our plan has it. What was not measured is empty or 0.
    ``interval`` is of an estimate: true latencies over its own, 10th and 90th percentile.
    """

    model: str
    digest: str
    gpu_kind: str
    weights_bytes: int
    activation_bytes: int
    points: Mapping[tuple[int, int], LatencyPoint]
    overhead: LaunchOverhead = LaunchOverhead()
    load_ms: float = 0.0
    pressure: Mapping[tuple[int, int], tuple[float, float]] = field(default_factory=dict)
    layers: tuple[LayerProfile, ...] = ()
    strains: Mapping[tuple[int, int], tuple[MemoryContention, ...]] = field(default_factory=dict)
    cold_ms: float = 0.0
    interval: tuple[float, float] = (1.0, 1.0)

    @property
    def estimated(self) -> bool:
        """Whether latencies follow from the model's graph, and were not measured."""
        return self.interval != (1.0, 1.0)


#: Profiles of one accelerator kind by deployment key.
Profiles = Mapping[str, Profile]


def quantile(ordered: Sequence[float], share: float) -> float:
    """The nearest-rank quantile of ascending values; never less than what was seen."""
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)]
