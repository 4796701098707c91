"""How much batches that run side by side on one accelerator slow each other."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol


class Runner(NamedTuple):
    """A batch that runs in a partition of ``share_pct``."""

    model: str
    batch: int
    share_pct: int


class Interference(Protocol):
    """Factor >= 1 on a batch's latency while ``neighbours`` run on the same accelerator."""

    def __call__(self, runner: Runner, neighbours: Sequence[Runner]) -> float: ...


@dataclass(frozen=True, slots=True)
class ConstantFactor:
    """The same slowdown whoever the neighbours are: the yardstick for every finer model."""

    factor: float = 1.0

    def __call__(self, runner: Runner, neighbours: Sequence[Runner]) -> float:
        return self.factor if neighbours else 1.0
