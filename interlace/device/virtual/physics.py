"""How a simulated accelerator behaves beyond the latencies of each model alone."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from interlace.device.virtual.contention import Contention, EqualRows
from interlace.device.virtual.costs import Costs
from interlace.device.virtual.station import HostLink, Transfer
from interlace.perf.interference import Interference


@dataclass(frozen=True, slots=True)
class HostCost:
    """What the host does around each batch, one batch after the other on one thread.

    ``launch_ms`` before it begins. ``sync_ms`` after it ended, until its end is known: a blocking
    synchronisation wakes a thread, a light one (Sync-lite) has told already. Costs that profiles
    hold (``Profile.overhead``) do not belong here.
    """

    launch_ms: float = 0.0
    sync_ms: float = 0.0


@dataclass(frozen=True, slots=True)
class Physics:
    """Everything off by default: then a batch takes its median, whoever runs beside it.

    ``interference`` slows batches that stay within their shares, ``contention`` rules where the
    running shares exceed 100. ``transfers`` are bytes per row of the models that copy anything
    over ``link``; one copy engine a direction. ``jitter`` spreads executions as the profile's p95
    says, by lognormal factors drawn from ``seed``.
    """

    costs: Costs = field(default_factory=Costs)
    interference: Interference | None = None
    contention: Contention = field(default_factory=EqualRows)
    link: HostLink | None = None
    transfers: Mapping[str, Transfer] = field(default_factory=dict)
    host: HostCost | None = None
    jitter: bool = False
    seed: int = 0
