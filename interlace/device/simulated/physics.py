"""How a simulated accelerator behaves beyond the latencies of each model alone."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from math import log
from random import Random
from types import MappingProxyType
from typing import Final, NamedTuple

from interlace.core.hardware import Gpu, Trait
from interlace.core.profile import Profile, Profiles
from interlace.perf.interference import Interference
from interlace.perf.latency import Surface

#: A model needs the smallest share at which it is within this factor of its best latency.
_ENOUGH = 1.05


class RunningBatch(NamedTuple):
    """A batch that runs: its rows, the share it may use, and its latencies alone."""

    model: str
    rows: int
    share_pct: int
    latency: Surface


#: Speeds, each in (0, 1] of that alone, of batches that run together.
Contention = Callable[[Sequence[RunningBatch]], Sequence[float]]


def equal_rows(running: Sequence[RunningBatch]) -> Sequence[float]:
    """Speeds, each in (0, 1] of that alone, of batches whose shares add up to more than 100.

    Every row in flight has an equal part of what its model gets; needs share the accelerator.

    Workers of one model without limits that run together take what one batch of all their rows
    takes: E2bird's hypothesis of equal resource sharing (section 7.2), confirmed by its Figure 7 up
    to 64 workers. What switching between more streams costs (128 workers there, single rows of
    Figure 12) it shows without a law.

    Between models, and between partitions with limits, the hardware is first come, first served.
    Each gets SMs in proportion to its need: the smallest share at which it is nearly as fast as
    alone. If the needs fit together, none is slowed, as with two models on D-STACK's default MPS
    (Figure 11a). If limits exceed 100 %, latency rises and throughput does not, as in the
    primitives paper's Figures 12a and 12b.
    """
    if len(running) == 1:
        return (1.0,)
    parts = _allotted(running)
    speeds: list[float] = []
    for index, one in enumerate(running):
        group, share_pct = parts[_key(index, one)]
        all_ms = _latency_ms(group.latency, group.rows, share_pct)
        alone_ms = _latency_ms(one.latency, one.rows, one.share_pct)
        speeds.append(min(1.0, alone_ms / all_ms))
    return speeds


def _allotted(
    running: Sequence[RunningBatch],
) -> Mapping[tuple[str, int], tuple[RunningBatch, float]]:
    """Each group as one batch, and the share it gets: its own, unless needs exceed the whole."""
    together = _together(running)
    needs_pct = {key: _need_pct(busy) for key, busy in together.items()}
    total_pct = sum(needs_pct.values())
    if total_pct <= 100.0:
        return {key: (busy, busy.share_pct) for key, busy in together.items()}
    return {key: (busy, needs_pct[key] * 100.0 / total_pct) for key, busy in together.items()}


def _key(index: int, one: RunningBatch) -> tuple[str, int]:
    """Workers of a model without limits count as one; one with a limit counts alone."""
    return one.model, index if one.share_pct < 100 else -1


def _together(running: Sequence[RunningBatch]) -> Mapping[tuple[str, int], RunningBatch]:
    """The batches of each group as one, rows added up."""
    groups: dict[tuple[str, int], RunningBatch] = {}
    for index, one in enumerate(running):
        key = _key(index, one)
        seen = groups.get(key)
        groups[key] = one if seen is None else seen._replace(rows=seen.rows + one.rows)
    return groups


def _need_pct(busy: RunningBatch) -> float:
    """The smallest share, in steps of 5, at which a batch is nearly as fast as in its own."""
    best_ms = _latency_ms(busy.latency, busy.rows, busy.share_pct)
    for share_pct in range(5, busy.share_pct, 5):
        if _latency_ms(busy.latency, busy.rows, share_pct) <= best_ms * _ENOUGH:
            return float(share_pct)
    return float(busy.share_pct)


def _latency_ms(latency: Surface, rows: int, share_pct: float) -> float:
    """The latency at any share: a line between measured ones, more in proportion below them all.

    Planners are promised nothing between measured shares; hardware does not step there.
    """
    shares = latency.shares_pct
    if share_pct <= shares[0]:
        return latency.latency_ms(rows, shares[0]) * shares[0] / share_pct
    if share_pct >= shares[-1]:
        return latency.latency_ms(rows, shares[-1])
    above = bisect_left(shares, share_pct)
    low, high = shares[above - 1], shares[above]
    slow_ms, fast_ms = latency.latency_ms(rows, low), latency.latency_ms(rows, high)
    return slow_ms + (fast_ms - slow_ms) * (share_pct - low) / (high - low)


class FifoResource:
    """First come, first served."""

    __slots__ = ("_free_at_ms",)

    def __init__(self) -> None:
        self._free_at_ms = 0.0

    def take(self, now_ms: float, for_ms: float) -> float:
        """Use it for that long as soon as it is free; when that ends."""
        self._free_at_ms = max(now_ms, self._free_at_ms) + for_ms
        return self._free_at_ms


class Transfer(NamedTuple):
    """Bytes that one row of a model brings and takes away."""

    input_bytes: int
    output_bytes: int


@dataclass(frozen=True, slots=True)
class HostLink:
    """Copies between host and device: a bandwidth, and what each copy costs to start.

    ``gather_bytes_per_ms`` is the bandwidth of putting scattered inputs together in host memory
    first, which a device that gathers by itself (GPU-DMA) does not pay; infinite for one that does.
    """

    bytes_per_ms: float
    start_ms: float = 0.01
    gather_bytes_per_ms: float = float("inf")

    def gathered_ms(self, nbytes: int, requests: int) -> float:
        """Time to bring in the inputs of so many requests: a copy each, or gathered first."""
        if self.gather_bytes_per_ms == float("inf"):
            return self.start_ms * requests + nbytes / self.bytes_per_ms
        return self.start_ms + nbytes / self.bytes_per_ms + nbytes / self.gather_bytes_per_ms

    def copied_ms(self, nbytes: int) -> float:
        """Time of one copy."""
        return self.start_ms + nbytes / self.bytes_per_ms


@dataclass(frozen=True, slots=True)
class MechanismCosts:
    """Times of a mechanism, in ms.

    ``carve_ms`` makes a partition that can load models, ``hand_over_ms`` is the pause of a model's
    first batch there: the moment in which an overlapped change swaps old for new.
    """

    carve_ms: float = 100.0
    release_ms: float = 1.0
    unload_ms: float = 1.0
    hand_over_ms: float = 0.0


#: By mechanism name.
MECHANISMS: Final[Mapping[str, MechanismCosts]] = MappingProxyType(
    {
        # A process with its own share: 10 to 15 s to reorganise (gpulet section 5.1), prepared
        # beside the old one, with a pause of 100 us at most at the switch (D-STACK section 3.2).
        "mps": MechanismCosts(carve_ms=12_500.0, release_ms=100.0, hand_over_ms=0.1),
        # A context and its streams in the process that serves already: no figure is published; the
        # CUDA guide (Green Contexts) says far lighter than MPS. An upper guess, to be measured.
        "green": MechanismCosts(carve_ms=1.0, release_ms=0.1, unload_ms=0.1),
        # About a second to remake instances (LithOS, SOSP 2025).
        "mig": MechanismCosts(carve_ms=1_000.0, release_ms=100.0),
        # Forked workers on cores: 16 to 40 ms measured (docs/benchmarks.md).
        "cores": MechanismCosts(carve_ms=30.0),
        # Not cut: streams or instances in a process that is there.
        "uncut": MechanismCosts(carve_ms=0.0, release_ms=0.0, unload_ms=1.0),
    }
)


#: Standard normal quantiles of 95 and 99 %.
_Q95: Final = 1.6449
_Q99: Final = 2.3263


class Jitter:
    """Lognormal factors of median 1, as wide as a profile's p95 and p99 lie above its medians.

    A profile gives one width, the mean over its points of the two quantiles' own: single points
    have too few samples to tell theirs apart. Equal seeds give equal factors in the order drawn.
    """

    def __init__(self, truth: Profiles, seed: str) -> None:
        self._truth = truth
        self._random = Random(seed)
        self._sigmas: dict[str, float] = {}

    def factor(self, model: str) -> float:
        """The next execution's time over the median's."""
        if model not in self._sigmas:
            self._sigmas[model] = sigma(self._truth[model])
        return self._random.lognormvariate(0.0, self._sigmas[model])


def sigma(profile: Profile) -> float:
    """The standard deviation of log(latency / median) that the quantiles of a profile mean."""
    widths = [
        max(0.0, log(ms / point.median_ms)) / quantile
        for point in profile.points.values()
        for ms, quantile in ((point.p95_ms, _Q95), (point.p99_ms, _Q99))
        if point.median_ms > 0 and ms > 0
    ]
    return sum(widths) / len(widths) if widths else 0.0


@dataclass(frozen=True, slots=True)
class HostCost:
    """What the host does around each batch, beyond what profiles hold (``Profile.overhead``).

    ``launch_ms`` before it begins. ``sync_ms`` after it ended, until its end is known and the next
    may be launched; one that was launched behind it (``Gpu.ahead_ms``) waits for neither. One
    thread of the host does both, for one batch after the other.
    """

    launch_ms: float = 0.0
    sync_ms: float = 0.0


@dataclass(frozen=True, slots=True)
class Physics:
    """Everything off by default: then a batch takes its median, whatever runs beside it.

    ``interference`` slows batches beside others, ``contention`` all the more where the running
    shares exceed 100. ``transfers`` are bytes per row of the models that copy anything
    over ``link``; one copy engine a direction. ``jitter`` spreads executions as the profile's p95
    and p99 say, by lognormal factors drawn from ``seed``.
    """

    costs: MechanismCosts = field(default_factory=MechanismCosts)
    interference: Interference | None = None
    contention: Contention = equal_rows
    link: HostLink | None = None
    transfers: Mapping[str, Transfer] = field(default_factory=dict)
    host: HostCost = field(default_factory=HostCost)
    jitter: bool = False
    seed: int = 0


class BoardSpec(NamedTuple):
    """Bytes per ms of one copy engine, one for each direction, and how the GPU is cut."""

    link_bytes_per_ms: float
    mechanism: str


#: PCIe 3.0 x16 brings 15.75 GB/s at most and 10.87 to a V100 for BERT-Base (DeepPlan Table 2 and
#: section 3.2). The other boards with that link are taken to be alike (link: NVIDIA's data sheets).
_PCIE3: Final = 10.87e6
#: Twice and four times the rate by the standard; that the same part of it is reached is assumed.
_PCIE4: Final = 2 * _PCIE3
_PCIE5: Final = 4 * _PCIE3

#: By ``Gpu.kind``. A kind that is not here has no copies and the costs of "uncut".
BOARDS: Final[Mapping[str, BoardSpec]] = MappingProxyType(
    {
        **{
            kind: BoardSpec(_PCIE3, "mps") for kind in ("p100", "v100", "t4", "titan-rtx", "2080ti")
        },
        **{
            kind: BoardSpec(_PCIE4, "mps")
            for kind in ("a10", "a30", "a100", "a100-40gb", "l40s", "rtx-3090", "rtx-4090")
        },
        "l4": BoardSpec(_PCIE3, "mps"),  # PCIe 4.0 x8
        "rtx-pro-6000": BoardSpec(_PCIE5, "mps"),
        "a100-mig": BoardSpec(_PCIE4, "mig"),
        "h100": BoardSpec(_PCIE5, "green"),
        "h200": BoardSpec(_PCIE5, "green"),
        "b200": BoardSpec(_PCIE5, "green"),
    }
)

#: What each request of its own adds to a copy (E2bird section 5.3, Figure 7, Titan RTX).
_START_MS: Final = 0.0039
#: Bytes per ms of gathering on the host: 2,506,216 cycles for 8 images (primitives paper, section
#: V-B) at 2.4 GHz, its processor's base clock, taking images as 3 x 224 x 224 floats.
_GATHER: Final = 8 * 602_112 / (2_506_216 / 2.4e6)


def physics_of(gpu: Gpu, transfers: Mapping[str, Transfer] | None = None) -> Physics:
    """What is known of a kind: its mechanism, and copies for models with ``transfers``.

    ``Trait.GATHER_DMA`` saves gathering inputs on the host. Host costs are left to profiles, which
    hold those of the server they were measured in. No interference and no jitter: those are
    measured for models.
    """
    board = BOARDS.get(gpu.kind)
    if board is None:
        return Physics(costs=MECHANISMS["uncut"])
    gather = float("inf") if Trait.GATHER_DMA in gpu.traits else _GATHER
    link = HostLink(board.link_bytes_per_ms, _START_MS, gather)
    return Physics(MECHANISMS[board.mechanism], link=link, transfers=transfers or {})
