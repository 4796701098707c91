"""How a simulated accelerator behaves beyond the latencies of each model alone."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import log
from random import Random
from types import MappingProxyType
from typing import Final, NamedTuple

from interlace.core.profile import Profile, Profiles
from interlace.device.simulated.contention import Contention, equal_rows
from interlace.perf.interference import Interference


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
