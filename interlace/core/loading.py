"""How a cold model's weights reach an accelerator."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class WeightPath(Enum):
    """The path of one layer's weights: copied, read in place from the host, or from a peer."""

    COPY = "copy"
    HOST = "host"
    PEER = "peer"


@dataclass(frozen=True, slots=True)
class LoadStep:
    layer: str
    via: WeightPath
    gpu: str


@dataclass(frozen=True, slots=True)
class LoadPlan:
    """Ordered steps; ``ready_ms`` is the predicted time to the first execution."""

    model: str
    steps: tuple[LoadStep, ...] = ()
    ready_ms: float = 0.0
