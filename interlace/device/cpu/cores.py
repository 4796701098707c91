"""Cores as the compute units of a CPU: legal shares, their allocation, the name of the kind."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Sequence

from interlace.formats.machine import processor_name


class CoreAllocator:
    """Counts how many partitions hold each core; they may overlap while plans change."""

    def __init__(self, cores: Sequence[int]) -> None:
        if not cores or len(set(cores)) != len(cores):
            raise ValueError(f"cores {list(cores)}: expected at least one, each once")
        self._holders = dict.fromkeys(cores, 0)
        total = len(cores)
        self._counts = {count * 100 // total: count for count in range(1, total + 1)}
        self._counts.pop(0, None)

    @property
    def shares_pct(self) -> tuple[int, ...]:
        """Whole cores as percentages, rounded down so that what fits in cores fits in percent."""
        return tuple(self._counts)

    def grant(self, share_pct: int, leaving: Collection[int] = ()) -> tuple[int, ...]:
        """The least-held cores for a share.

        ``leaving`` are cores of partitions that go soon, once for each: they count as free where
        others are as good.

        Raises:
            ValueError: no such share.
        """
        count = self._counts.get(share_pct)
        if count is None:
            raise ValueError(f"a share of {share_pct} %: expected one of {list(self._counts)}")
        going = Counter(leaving)
        order = sorted(
            self._holders,
            key=lambda core: (self._holders[core] - going[core], self._holders[core], core),
        )
        granted = tuple(sorted(order[:count]))
        for core in granted:
            self._holders[core] += 1
        return granted

    def give_back(self, cores: Sequence[int]) -> None:
        """Undo a grant."""
        for core in cores:
            self._holders[core] -= 1


def cpu_kind(cores: int) -> str:
    """The kind profiles are kept by: processor model and number of cores, as one word."""
    name = processor_name() or "unknown"
    noise = r"\((r|tm)\)|\bcpu\b|processor|@.*|\d+-core"
    words = re.findall(r"[a-z0-9]+", re.sub(noise, " ", name.lower()))
    return f"cpu-{'-'.join(words) or 'unknown'}-{cores}c"
