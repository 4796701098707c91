"""The highest rate that still holds."""

from collections.abc import Callable


def highest(holds: Callable[[float], bool], low: float, high: float, exactly: float) -> float:
    """The highest rate between two that holds, to a factor: ``low`` is taken to, ``high`` not."""
    while high / low > exactly:
        middle = (low * high) ** 0.5
        low, high = (middle, high) if holds(middle) else (low, middle)
    return low
