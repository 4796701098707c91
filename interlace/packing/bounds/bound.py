"""A lower bound on accelerators, with prices."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import ceil


@dataclass(frozen=True, slots=True)
class Bound:
    """Accelerators needed at least; ``price`` is what one more request/s of a model adds."""

    accelerators: float
    price: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class LowerBound:
    """Four bounds: each holds, so the largest does.

    ``excluded`` are models that no share serves in time: they are in none of the bounds.
    """

    area: Bound
    configuration: Bound
    gathering: Bound
    memory: Bound
    excluded: tuple[str, ...] = ()

    @property
    def best(self) -> Bound:
        """The largest of the four."""
        every = (self.configuration, self.area, self.gathering, self.memory)
        return max(every, key=lambda bound: bound.accelerators)

    @property
    def gpus(self) -> int:
        """Whole accelerators; a solver's rounding does not make one more."""
        return ceil(self.best.accelerators - 1e-6)
