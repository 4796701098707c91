"""The one quantile of samples in the package."""

from __future__ import annotations

import math
from collections.abc import Sequence


def quantile(ordered: Sequence[float], share: float) -> float:
    """The nearest-rank quantile of ascending values; never less than what was seen."""
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)]
