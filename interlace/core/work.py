"""What a model computes, read from its graph: FLOPs, values moved and parallel tiles by layer."""

from __future__ import annotations

from typing import Final, Literal, get_args

import msgspec

Kind = Literal[
    "conv", "grouped", "depthwise", "matmul", "attention",  # products
    "norm", "scale", "pool", "gather", "pass",  # of memory alone; scale: a batch norm
]  # fmt: skip
KINDS: Final[tuple[Kind, ...]] = get_args(Kind)


class LayerWork(msgspec.Struct, frozen=True, array_like=True):
    """The work of one kernel for one row of the batch.

    ``weights`` are parameter values, read once a batch; ``read`` and ``written`` are activation
    values of a row. A kernel of products computes ``m`` by ``n`` results a row, each a sum over
    ``k`` terms; others have ``n`` = ``k`` = 1 and one ``m`` for each value written.
    """

    kind: Kind
    flops: float
    weights: float
    read: float
    written: float
    m: float
    n: float
    k: float


class ModelWork(msgspec.Struct, frozen=True):
    """All kernels of a model in order, and what could not be read (layer and operator).

    ``fused``: element-wise kernels already run inside the products before them. ``half``: most
    weights are values of two bytes. ``stored`` are all parameter values, those of tables too.
    ``assumed`` are inputs whose sizes nobody said, with those that were taken.
    """

    layers: tuple[LayerWork, ...]
    unread: tuple[str, ...] = ()
    fused: bool = False
    half: bool = False
    stored: float = 0.0
    assumed: tuple[str, ...] = ()

    @property
    def flops(self) -> float:
        """FLOPs of one row."""
        return sum(one.flops for one in self.layers)

    @property
    def weights(self) -> float:
        """Parameter values in memory."""
        return max(self.stored, sum(one.weights for one in self.layers))

    @property
    def peak_values(self) -> float:
        """Activation values of one row that are alive at once, at least: the largest kernel's."""
        return max((one.read + one.written for one in self.layers), default=0.0)
