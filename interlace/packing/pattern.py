"""A way to fill a partition, and the problem of finding the most valuable one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from interlace.packing.batch_options import BatchOptions, DemandArrays
from interlace.packing.queueing import Floats


@dataclass(frozen=True, slots=True)
class Pattern:
    """``turns`` are (model index, batch) in a partition, ``rows_per_s`` what each serves.

    ``duty_ms`` is the cycle in which the turns follow each other, 0 if they go by deadline.
    """

    share_pct: int
    turns: tuple[tuple[int, int], ...]
    rows_per_s: tuple[float, ...]
    duty_ms: float = 0.0


class PricingProblem(Protocol):
    """The pricing problem of column generation, of all shares: patterns of highest value."""

    @property
    def options(self) -> Mapping[int, BatchOptions]: ...  #: by share
    @property
    def arrays(self) -> DemandArrays: ...
    def best(self, price: Floats, left_rows_per_s: Floats, count: int = 1) -> list[Pattern]:
        """Some ``count`` patterns of high value of each share.

        ``price`` is the worth of one row/s of each model, ``left_rows_per_s`` how many are wanted:
        more than that is worth nothing.
        """

    def of(
        self, share_pct: int, turns: Sequence[tuple[int, int]], rows_per_s: Sequence[float]
    ) -> Pattern | None:
        """These turns with what they serve here; ``None`` if one of them cannot be."""

    def worth(self) -> Mapping[int, Floats]:
        """By share, the least part of its time that one request/s of each model takes."""


class ServiceOrder(Protocol):
    """The order in which models that share a partition are served."""

    def __call__(self, options: Sequence[BatchOptions], arrays: DemandArrays) -> PricingProblem: ...
