"""Demands that a plan can be made for, and words for those it cannot."""

from __future__ import annotations

from collections.abc import Sequence
from math import isfinite

from interlace.core.hardware import Fleet
from interlace.core.plan import Demand
from interlace.core.profile import Profiles
from interlace.perf.interference import Interference
from interlace.perf.latency import surface


def screened(
    demand: Sequence[Demand], fleet: Fleet, profiles: Profiles, interference: Interference
) -> tuple[list[Demand], dict[str, float], dict[str, str]]:
    """Demands to place, and what is unserved whatever the plan, with reasons.

    A rate of zero asks for nothing and is neither.
    """
    wanted: list[Demand] = []
    unserved: dict[str, float] = {}
    reasons: dict[str, str] = {}
    for one in demand:
        reason = _hopeless(one, fleet, profiles)
        if reason:
            unserved[one.model] = one.rate_rps
            reasons[one.model] = reason
        elif one.rate_rps > 0:
            wanted.append(one)
    return wanted, unserved, reasons


def _hopeless(one: Demand, fleet: Fleet, profiles: Profiles) -> str | None:
    if not (isfinite(one.rate_rps) and one.rate_rps >= 0):
        return f"a rate of {one.rate_rps:g} requests/s; expected 0 or more"
    if not (isfinite(one.slo_ms) and one.slo_ms > 0) or one.max_batch < 1:
        return f"an SLO of {one.slo_ms:g} ms and batches of {one.max_batch}; expected more than 0"
    if one.model not in profiles or not profiles[one.model].points:
        return "there is no profile of it for this kind of accelerator: measure one first"
    profile = profiles[one.model]
    room = max((gpu.memory_bytes for gpu in fleet.gpus), default=None)
    needed = profile.weights_bytes + profile.activation_bytes
    if room is not None and needed > room:
        return f"it needs {needed / 1e6:.0f} MB and an accelerator has {room / 1e6:.0f} MB"
    alone_ms = surface(profile).latency_ms(1, 100)
    if alone_ms > one.slo_ms:
        return (
            f"one row alone takes {alone_ms:.1f} ms on a whole accelerator, more than the SLO of "
            f"{one.slo_ms:g} ms: raise the SLO"
        )
    return None
