"""Exact search over a lattice of rates: which scenarios any duty-cycle schedule could serve.

A partition of share p serves a set F_p of rate vectors. On the lattice whose step is a piece of a
model's rate, F_p is found by trying every vector (``perf.duty.shortest`` says yes or no; whoever
serves a vector serves all below it). An accelerator then serves the union over its layouts of the
sums F_p + F_q + ..., two accelerators the sum of two such sets, and so on: no heuristic is left but
the size of a piece. The smaller the piece, the more ways there are to split a model.
"""

from collections.abc import Iterator, Sequence
from functools import reduce

import numpy as np
import numpy.typing as npt

from interlace.core.hardware import Gpu
from interlace.core.plan import Demand
from interlace.core.profile import Profiles
from interlace.packing.layouts import layouts
from interlace.perf.duty import CycleTurn, shortest
from interlace.perf.tables import Tables

Bools = npt.NDArray[np.bool_]
Ints = npt.NDArray[np.int64]


class Lattice:
    """Vectors of pieces, 0 to ``pieces`` of each model's rate, in arrays of that shape."""

    def __init__(self, demand: Sequence[Demand], profiles: Profiles, pieces: int) -> None:
        self._demand = demand
        self._tables = Tables(profiles)
        self._pieces = pieces
        self._shape = (pieces + 1,) * len(demand)

    def partition(self, share_pct: int) -> Bools:
        """Vectors that one partition of the share serves."""
        served = np.zeros(self._shape, bool)
        loads = [
            [self._turn(one, count, share_pct) for count in range(self._pieces + 1)]
            for one in self._demand
        ]
        for vector in _served(loads, 0, []):
            served[vector] = True
        return served

    def accelerator(self, gpu: Gpu) -> Bools:
        """Vectors that one accelerator serves in any of its layouts."""
        alone = {share: self.partition(share) for share in gpu.shares_pct}
        cut = layouts(gpu, gpu.shares_pct)
        each = [reduce(total, (alone[share] for share in layout)) for layout in cut]
        either: Bools = np.logical_or.reduce(each)
        return either

    def _turn(self, one: Demand, count: int, share_pct: int) -> CycleTurn:
        return self._tables.turn(one, one.rows_per_s * count / self._pieces, share_pct)


def _served(
    loads: Sequence[Sequence[CycleTurn]], index: int, turns: list[CycleTurn]
) -> Iterator[tuple[int, ...]]:
    """Vectors of the models from ``index`` on that fit a cycle beside ``turns``."""
    if index == len(loads):
        yield ()
        return
    for count, load in enumerate(loads[index]):
        more = [*turns, load] if count else turns
        if count and shortest(more) is None:
            return
        for rest in _served(loads, index + 1, more):
            yield (count, *rest)


def total(one: Bools, other: Bools) -> Bools:
    """Vectors up to a sum of one of each; both sets hold whatever is below a member."""
    few, many = sorted((one, other), key=lambda s: int(s.sum()))
    found = np.zeros(one.shape, bool)
    for corner in maximal(few):
        into = tuple(slice(int(c), None) for c in corner)
        source = tuple(slice(None, n - int(c)) for n, c in zip(one.shape, corner, strict=True))
        found[into] |= many[source]
    return closed(found)


def maximal(members: Bools) -> Ints:
    """Members that no other one is above of, one a row."""
    inner = members.copy()
    for axis in range(members.ndim):
        above = np.zeros_like(members)
        lower = [slice(None)] * members.ndim
        upper = [slice(None)] * members.ndim
        lower[axis], upper[axis] = slice(None, -1), slice(1, None)
        above[tuple(lower)] = members[tuple(upper)]
        inner &= ~above
    return np.argwhere(inner)


def closed(members: Bools) -> Bools:
    """The members and everything below them."""
    found = members
    for axis in range(members.ndim):
        turned = np.flip(found, axis)
        found = np.flip(np.logical_or.accumulate(turned, axis=axis), axis)
    return np.ascontiguousarray(found)


def doubled(members: Bools, step: int) -> Bools:
    """Which vectors of whole rates (every ``step`` pieces) are sums of two members."""
    corners = maximal(members)
    whole = np.arange(0, members.shape[0], step)
    found = np.zeros((len(whole),) * members.ndim, bool)
    for corner in corners:
        rest = np.ix_(*(np.maximum(whole - c, 0) for c in corner))
        found |= members[rest]
    return found
