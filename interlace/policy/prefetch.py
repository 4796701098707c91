"""What is brought while a link is idle: nothing, or what is worth most."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from interlace.core.loading import LoadPlan
from interlace.policy.cold_policy import Holding
from interlace.policy.eviction import cheapest_first

#: What comes unasked must be worth that many times as much as all that leaves for it: rates are
#: known roughly, and nothing is to go back and forth by what is not known.
_HYSTERESIS: Final = 4.0


def on_demand(
    free_bytes: int, holdings: Sequence[Holding], now_ms: float
) -> tuple[str, LoadPlan] | None:
    """Nothing."""
    return None


def hottest_missing(
    free_bytes: int, holdings: Sequence[Holding], now_ms: float
) -> tuple[str, LoadPlan] | None:
    """The missing part that is worth most: rate x milliseconds saved a byte."""
    best, best_worth, sure_worth, nbytes = None, 0.0, 0.0, 0
    for one in holdings:
        missing = None if one.fetching else one.curve.missing(one.held)
        if missing is None:
            continue
        part, plan = missing
        worth = one.rate_rps * part.worth_ms
        if worth > best_worth:
            best, best_worth, nbytes = (one.model, plan), worth, part.nbytes
            sure_worth = one.sure_rps * part.worth_ms
    if best is None or not _pays(sure_worth, nbytes - free_bytes, best[0], holdings):
        return None
    return best


def _pays(worth_ms: float, need_bytes: int, model: str, holdings: Sequence[Holding]) -> bool:
    """Whether enough leaves that is worth much less."""
    if need_bytes <= 0:
        return True
    for left_ms, leaver, part in cheapest_first(holdings):
        if leaver == model or _HYSTERESIS * left_ms >= worth_ms:
            return False
        need_bytes -= part.nbytes
        if need_bytes <= 0:
            return True
    return False
