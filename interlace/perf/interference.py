"""How much batches that run side by side on one accelerator slow each other."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol


class Interference(Protocol):
    """Factor >= 1 on a model's latency while ``neighbours`` run on the same accelerator."""

    def __call__(self, model: str, neighbours: Sequence[str]) -> float: ...


@dataclass(frozen=True, slots=True)
class ConstantFactor:
    """The same slowdown whoever the neighbours are: the yardstick for every finer model."""

    factor: float = 1.0

    def __call__(self, model: str, neighbours: Sequence[str]) -> float:
        return self.factor if neighbours else 1.0
