"""Which batch at which share (D-STACK section 5), and the knee of a model nobody measured (3.3)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

from interlace.perf.knee import efficacy, worth_of_unit
from interlace.perf.latency import Surface

#: What a model of unknown knee is given first (section 3.3).
FIRST_SHARE_PCT: Final = 30


@dataclass(frozen=True, slots=True)
class Size:
    """A batch and a share; ``deployed_pct`` is the share with what is given on top of it."""

    batch: int
    share_pct: int
    deployed_pct: int
    latency_ms: float
    efficacy: float


@dataclass(frozen=True, slots=True)
class Sizing:
    """The optimisation of section 5: the highest efficacy (equation 9) under constraints 10 to 12.

    ``assembly_ms`` is the time in which one more row is there (0.481 ms in the paper, from its
    link): a batch of b is assembled in C = b * assembly_ms. ``over_provision_pct`` is added to the
    share before it is deployed, "5-10 %" in the paper. The paper fits a function and descends it;
    shares and batches are few, so all are tried.
    """

    over_provision_pct: int = 5
    assembly_ms: float = 0.0

    def __call__(
        self, latency: Surface, slo_ms: float, shares_pct: Sequence[int], max_batch: int
    ) -> Size | None:
        """The best size among these shares; ``None`` if none meets the SLO.

        Shares below the smallest measured are passed over. Of equals the smaller share wins, then
        the larger batch.
        """
        least = latency.shares_pct[0]
        best: Size | None = None
        for share in sorted(share for share in shares_pct if share >= least):
            table = latency.table(share, max_batch)
            for batch in range(max_batch, 0, -1):
                run_ms = table[batch]
                if not self.feasible(batch, run_ms, slo_ms):
                    continue
                worth = efficacy(batch, run_ms, share)
                if best is None or worth > best.efficacy:
                    best = Size(batch, share, share, run_ms, worth)
        if best is None:
            return None
        return replace(best, deployed_pct=self.deployed_pct(best.share_pct, shares_pct))

    def feasible(self, batch: int, run_ms: float, slo_ms: float) -> bool:
        """Constraints 11 and 12: assembled and run within the SLO, run within half of it."""
        return run_ms + batch * self.assembly_ms <= slo_ms and run_ms <= slo_ms / 2.0

    def deployed_pct(self, share_pct: int, shares_pct: Sequence[int]) -> int:
        """The smallest legal share larger by the over-provision, or the largest there is."""
        wanted = min(share_pct + self.over_provision_pct, max(shares_pct))
        return min(share for share in shares_pct if share >= wanted)


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
