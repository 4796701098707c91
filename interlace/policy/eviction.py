"""Which models leave when memory is short."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from interlace.policy.view import Tally


def least_recently_used(
    need_bytes: int, resident: Mapping[str, Tally], now_ms: float
) -> Sequence[str]:
    """Models by the time of their last start, the longest idle first."""
    return sorted(resident, key=lambda model: (resident[model].last_start_ms, model))
