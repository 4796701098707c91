"""What accelerators cost an hour, by kind."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

from interlace.core.hardware import Gpu


@dataclass(frozen=True, slots=True)
class FleetCost:
    """What accelerators cost an hour: those with a part in the plan, and all that are there."""

    used_per_hour: float
    all_per_hour: float


@dataclass(frozen=True, slots=True)
class KindPrices:
    """The price of one accelerator an hour by kind, in any money; none where it plays no part.

    A kind that is missing among others is taken to be as dear as the dearest of them.
    """

    per_hour: Mapping[str, float] = field(default_factory=dict)

    def __bool__(self) -> bool:
        return bool(self.per_hour)

    def of(self, kind: str) -> float:
        """Of one of this kind; 1 of each without any prices: accelerator time is what counts."""
        return self.per_hour.get(kind, max(self.per_hour.values(), default=1.0))

    def total(self, gpus: Iterable[Gpu]) -> float:
        """Of all these."""
        return sum(self.of(gpu.kind) for gpu in gpus)

    def cost(self, gpus: Collection[Gpu], used: Collection[str]) -> FleetCost | None:
        """Of these accelerators, ``used`` by their ids; ``None`` without prices."""
        if not self:
            return None
        return FleetCost(self.total(gpu for gpu in gpus if gpu.id in used), self.total(gpus))

    def remark(self, kind: str) -> str:
        """What to do about a kind that has no price while others have one; "" if nothing."""
        if not self or not kind or kind in self.per_hour:
            return ""
        return (
            f"{kind} has no price and counts as the dearest: say what one costs an hour, with "
            f"--price {kind}=USD"
        )


NO_PRICES: Final = KindPrices()
