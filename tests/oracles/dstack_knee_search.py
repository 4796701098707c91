"""The knee of a model that was not measured, searched for while it serves (D-STACK section 3.3)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from interlace.perf.sizing import worth_of_unit

#: What a model of unknown knee is given first (section 3.3).
FIRST_SHARE_PCT: Final = 30


@dataclass(frozen=True, slots=True)
class KneeSearch:
    """A binary search for the knee of a model that runs: run at ``share_pct``, then ``step``.

    Equation 6 rises up to the knee and falls after it, so of two neighbouring shares the better
    one says on which side the knee is. ``low`` and ``high`` are indices into the ascending
    ``shares_pct`` between which it lies, ``middle`` and the one after it are compared next;
    ``seen`` is what was measured, index and ms.
    """

    shares_pct: tuple[int, ...]
    low: int
    high: int
    middle: int
    seen: tuple[tuple[int, float], ...] = ()

    @property
    def share_pct(self) -> int:
        """The share to run at now: the next to be measured, or the knee once ``done``."""
        return self.shares_pct[self._at()]

    @property
    def done(self) -> bool:
        return self.low == self.high

    def step(self, latency_ms: float) -> KneeSearch:
        """The search after ``latency_ms`` was measured at ``share_pct``.

        Raises:
            ValueError: the latency is not above 0.
        """
        if not latency_ms > 0:
            raise ValueError(
                f"a latency of {latency_ms} ms at {self.share_pct} %: expected above 0"
            )
        known = dict(self.seen) | {self._at(): latency_ms}
        low, high, middle = self.low, self.high, self.middle
        while low < high and middle in known and middle + 1 in known:
            if self._worth(known, middle + 1) > self._worth(known, middle):
                low = middle + 1
            else:
                high = middle
            middle = (low + high) // 2
        return KneeSearch(self.shares_pct, low, high, middle, tuple(sorted(known.items())))

    def _at(self) -> int:
        if self.done or self.middle not in dict(self.seen):
            return self.middle
        return self.middle + 1

    def _worth(self, known: dict[int, float], index: int) -> float:
        return worth_of_unit(known[index], self.shares_pct[index])


def knee_search(shares_pct: Sequence[int], first_pct: int = FIRST_SHARE_PCT) -> KneeSearch:
    """A search over these shares that begins at the one nearest to ``first_pct`` but the last.

    Raises:
        ValueError: there are no shares.
    """
    if not shares_pct:
        raise ValueError("a search for a knee needs at least one share")
    ascending = tuple(sorted(set(shares_pct)))
    begin = range(max(1, len(ascending) - 1))
    first = min(begin, key=lambda i: (abs(ascending[i] - first_pct), i))
    return KneeSearch(ascending, 0, len(ascending) - 1, first)
