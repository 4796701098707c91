"""How a simulated accelerator behaves beyond the latencies of each model alone."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Final

from interlace.device.simulated.contention import Contention, EqualRows
from interlace.device.simulated.costs import MechanismCosts
from interlace.device.simulated.host_link import HostLink, Transfer
from interlace.perf.interference import Interference


@dataclass(frozen=True, slots=True)
class HostCost:
    """What the host does around each batch, beyond what profiles hold (``Profile.overhead``).

    ``launch_ms`` before it begins. ``sync_ms`` after it ended, until its end is known and the next
    may be launched; one that was launched behind it (``Gpu.ahead_ms``) waits for neither. On
    ``one_thread`` of the host both are done for one batch after the other; otherwise every
    partition has a thread of its own, as processes under MPS have.
    """

    launch_ms: float = 0.0
    sync_ms: float = 0.0
    one_thread: bool = True


#: Ways to learn of a batch's end, as the primitives paper compares them (Figure 6a, AlexNet of one
#: row): 3.2 ms with Sync-lite, 3.8 with a callback, 4.17 with a blocking synchronisation; figures
#: here are what each costs more than the first. Its models run one on each of four GPUs.
NOTIFICATION: Final[Mapping[str, HostCost]] = MappingProxyType(
    {
        "sync-lite": HostCost(one_thread=False),
        "callback": HostCost(sync_ms=0.6, one_thread=False),
        "blocking": HostCost(sync_ms=0.97, one_thread=False),
    }
)


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
    contention: Contention = field(default_factory=EqualRows)
    link: HostLink | None = None
    transfers: Mapping[str, Transfer] = field(default_factory=dict)
    host: HostCost | None = None
    jitter: bool = False
    seed: int = 0
