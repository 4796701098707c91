"""Demands that can be planned for, and reasons for those that cannot."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import inf, isfinite
from typing import Final

from interlace.core.hardware import Fleet
from interlace.core.plan import Demand, Partition, Plan
from interlace.core.profile import Profile, Profiles
from interlace.perf.tables import Tables

#: Accelerator time that a model of unknown rate is taken to want.
UNKNOWN_SHARE: Final = 0.02
_LEAST_ROWS_PER_S: Final = 1e-3


@dataclass(frozen=True, slots=True)
class FeasibleDemand:
    """Demands to place, and what is unserved whatever the plan, with reasons."""

    wanted: tuple[Demand, ...]
    unserved_rows_per_s: dict[str, float]
    reasons: dict[str, str]

    def plan(
        self,
        partitions: tuple[Partition, ...],
        unserved_rows_per_s: dict[str, float],
        reasons: dict[str, str],
    ) -> Plan:
        """The plan for what was wanted, with what was refused beforehand."""
        return Plan(
            partitions,
            {**self.unserved_rows_per_s, **unserved_rows_per_s},
            {**self.reasons, **reasons},
        )


def feasible(
    demand: Sequence[Demand], fleet: Fleet, tables: Tables, waits: float = 1.0
) -> FeasibleDemand:
    """Demands that some accelerator of the fleet could serve alone.

    ``waits`` is how many executions a request may have to wait before its own: one where batches
    run in a duty cycle. A rate of zero asks for nothing and is left out; a rate that is no rate is
    unserved at 0, with its reason.

    Raises:
        ValueError: a model is asked for twice.
    """
    for name, times in Counter(one.model for one in demand).items():
        if times > 1:
            raise ValueError(
                f"{name} is asked for {times} times: give one demand with its whole rate"
            )
    wanted: list[Demand] = []
    unserved: dict[str, float] = {}
    reasons: dict[str, str] = {}
    most_bytes = _most_bytes(fleet)
    for one in demand:
        reason = _figures(one) or _profile(one, tables.profiles) or _room(one, most_bytes, tables)
        reason = reason or ("" if one.rows_per_s == 0 else _time(one, tables, waits))
        if reason:
            unserved[one.model] = one.rows_per_s if one.rows_per_s > 0 else 0.0
            reasons[one.model] = reason
        elif one.rows_per_s > 0:
            wanted.append(one)
    return FeasibleDemand(tuple(wanted), unserved, reasons)


def known_rate(one: Demand, tables: Tables) -> Demand:
    """A rate of zero is an unknown one; what cannot be looked up is left to be refused."""
    profile = tables.profiles.get(one.model)
    if one.rows_per_s != 0 or profile is None or not profile.points:
        return one
    alone_ms = tables.surface(one.model).latency_ms(1, 100)
    return replace(one, rows_per_s=1000.0 * UNKNOWN_SHARE / alone_ms if alone_ms > 0 else 1.0)


def with_least_rate(one: Demand) -> Demand:
    """A model of unknown rate, which is 0, asks for next to nothing: it is given a place."""
    return replace(one, rows_per_s=one.rows_per_s or _LEAST_ROWS_PER_S)


def _figures(one: Demand) -> str:
    if not (isfinite(one.rows_per_s) and one.rows_per_s >= 0):
        return f"a rate of {one.rows_per_s:g} rows/s: give a finite one of 0 or more"
    if not (isfinite(one.slo_ms) and one.slo_ms > 0):
        return f"an SLO of {one.slo_ms:g} ms: give a finite one above 0"
    if one.max_batch < 1:
        return f"batches of at most {one.max_batch}: allow at least 1"
    if not 0 < one.attainment <= 1:
        return f"an attainment of {one.attainment:g}: give a part above 0 and up to 1"
    if not (isfinite(one.cv) and one.cv >= 0):
        return f"a coefficient of variation of {one.cv:g}: give a finite one of 0 or more"
    return ""


def _profile(one: Demand, profiles: Profiles) -> str:
    if one.model not in profiles:
        return "there is no profile of it for this kind of accelerator: measure one first"
    profile = profiles[one.model]
    if not profile.points:
        return "its profile holds no measured points: measure it again"
    if not _sound(profile):
        return "its profile holds latencies or batches that are not above 0: measure it again"
    return ""


def _sound(profile: Profile) -> bool:
    return all(
        batch >= 1 and share >= 1 and 0.0 < point.p95_ms < inf
        for (batch, share), point in profile.points.items()
    )


def _room(one: Demand, most_bytes: int | None, tables: Tables) -> str:
    if most_bytes is None:
        return "there is no accelerator"
    profile = tables.profiles[one.model]
    needed = profile.weights_bytes + profile.activation_bytes
    if needed > most_bytes:
        return f"it needs {needed / 1e6:.0f} MB and an accelerator has {most_bytes / 1e6:.0f} MB"
    return ""


def _most_bytes(fleet: Fleet) -> int | None:
    """The most memory that a partition of any accelerator has; ``None`` without accelerators."""
    kinds = {(gpu.memory_bytes, gpu.walls) for gpu in fleet.gpus}
    rooms = (max((size for _, size in walls), default=whole) for whole, walls in kinds)
    return max(rooms, default=None)


def _time(one: Demand, tables: Tables, waits: float) -> str:
    alone_ms = tables.surface(one.model).latency_ms(1, 100)
    return (
        "" if (1.0 + waits) * alone_ms <= one.slo_ms * (1 + 1e-9) else too_slow(one, tables, waits)
    )


def too_slow(one: Demand, tables: Tables, waits: float = 1.0) -> str:
    """The reason for a model that misses its SLO after as many executions of others."""
    alone_ms = tables.surface(one.model).latency_ms(1, 100)
    wait = "; with as long a wait before it, that is" if waits else ","
    return (
        f"one row alone takes {alone_ms:.1f} ms on a whole accelerator{wait} more than the SLO of "
        f"{one.slo_ms:g} ms: raise the SLO above {(1.0 + waits) * alone_ms:.0f} ms"
    )
