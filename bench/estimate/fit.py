"""Fit the constants of the law in perf/estimate to measured batches, by damped least squares."""

from collections import Counter
from collections.abc import Sequence
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from interlace.core.work import KINDS, ModelWork
from interlace.perf.estimate import LawConstants, Layers, Rates, columns, kernel_s

Floats = npt.NDArray[np.float64]
_KINDS: Final = len(KINDS)
#: Logarithmic errors beyond this count linearly: some measurements are of other code paths.
_HUBER: Final = 0.15
#: Where the search begins, and how strongly each is held there (an error of one in its logarithm
#: costs as much as that many models' error of one).
START: Final = LawConstants(
    efficiency=(0.9, 0.5, 0.03, 0.9, 0.9, *[1.0] * 5),
    bandwidth=(0.8, 0.6, 0.5, 0.5, 0.6, 0.6, 0.7, 0.5, 0.4, 0.7),
    half_k=(60.0, 32.0, 1.0, 60.0, 16.0, *[1.0] * 5),
    half_n=(30.0, 16.0, 0.01, 30.0, 16.0, *[0.01] * 5),
    tile=1.0,
    cached=0.3,
    norm=2.0,
    winograd=1.0,
    launch_us=2.0,
    host_us=5.0,
)
_HELD: Final = 0.3
#: The law's numbers by place but that of ``winograd``: tensor cores use no such algorithm.
ALL: Final = range(4 * _KINDS + 6)
TENSOR_CORES: Final = [at for at in ALL if at != 4 * _KINDS + 3]


class Measured(NamedTuple):
    """Measured batches of one model: kernels without repetition, how often each runs.

    ``copies_s`` of the measured time were copies of inputs to the GPU.
    """

    model: str
    layers: Layers
    times: Floats
    gpu: Rates
    rows: float
    share: float
    dram_share: float | None
    seconds: float
    kernels: int
    copies_s: float = 0.0


def unique(work: ModelWork) -> tuple[Layers, Floats]:
    """The kernels without repetition, and how often each runs."""
    found = Counter(work.layers)
    return columns(list(found)), np.array(list(found.values()), dtype=float)


def to_vector(constants: LawConstants) -> Floats:
    """The logarithms of all constants."""
    parts = (constants.efficiency, constants.bandwidth, constants.half_k, constants.half_n)
    more = (
        constants.tile,
        constants.cached,
        constants.norm,
        constants.winograd,
        constants.launch_us,
        constants.host_us,
    )
    return np.log([*(value for part in parts for value in part), *more])


def to_constants(vector: Floats) -> LawConstants:
    """The constants of such a vector."""
    values = [float(one) for one in np.exp(vector)]
    first, second, third, fourth = (
        tuple(values[at * _KINDS : (at + 1) * _KINDS]) for at in range(4)
    )
    tile, cached, *others = values[4 * _KINDS :]
    return LawConstants(first, second, third, fourth, tile, min(cached, 0.95), *others)


class _Joined:
    """All kernels of many batches in one set of columns."""

    def __init__(self, batches: Sequence[Measured]) -> None:
        sizes = [len(one.times) for one in batches]
        self._starts = np.cumsum([0, *sizes[:-1]])
        self._layers = Layers(
            *(np.concatenate(part) for part in zip(*(b.layers for b in batches), strict=True))
        )
        self._times = np.concatenate([one.times for one in batches])

        def spread(values: Sequence[float]) -> Floats:
            return np.repeat(np.array(values, dtype=float), sizes)

        self._gpu = Rates(*(spread(part) for part in zip(*(b.gpu for b in batches), strict=True)))  # type: ignore[arg-type]
        self._rows, self._share = (
            spread([b.rows for b in batches]),
            spread([b.share for b in batches]),
        )
        self._dram = spread(
            [min(1.0, b.share / 0.5) if b.dram_share is None else b.dram_share for b in batches]
        )
        self._copies = np.array([b.copies_s for b in batches])
        self._count = np.array([b.kernels for b in batches], dtype=float)

    def seconds(self, constants: LawConstants) -> Floats:
        of: Any = self._rows, self._share, self._dram  # of each layer: the law is elementwise
        each = kernel_s(self._layers, constants, self._gpu, *of)
        found: Floats = np.add.reduceat(each * self._times, self._starts)
        found = np.maximum(found, 1e-6 * constants.host_us * self._count) + self._copies
        return found


def predict(batches: Sequence[Measured], constants: LawConstants) -> Floats:
    """Seconds of each batch."""
    return _Joined(batches).seconds(constants)


def fit(
    batches: Sequence[Measured],
    start: LawConstants = START,
    steps: int = 25,
    held: float = _HELD,
    free: Sequence[int] = TENSOR_CORES,
) -> LawConstants:
    """The constants whose logarithmic errors are least; only ``free`` ones may move."""
    joined, origin = _Joined(batches), to_vector(start)
    wanted = np.log([one.seconds for one in batches])
    at, damping = origin.copy(), 1e-2
    chosen = np.array(free)

    def residuals(vector: Floats) -> Floats:
        return np.log(joined.seconds(to_constants(vector))) - wanted

    def cost(off: Floats, vector: Floats) -> float:
        size = np.abs(off)
        huber = np.where(size < _HUBER, size**2 / 2, _HUBER * (size - _HUBER / 2))
        return float(huber.sum() + held**2 * ((vector - origin) ** 2).sum() / 2)

    off = residuals(at)
    best = cost(off, at)
    for _ in range(steps):
        slopes = np.empty((len(off), len(chosen)))
        for column, place in enumerate(chosen):
            moved = at.copy()
            moved[place] += 1e-4
            slopes[:, column] = (residuals(moved) - off) / 1e-4
        weight = np.minimum(1.0, _HUBER / np.maximum(np.abs(off), 1e-9))
        normal = slopes.T @ (slopes * weight[:, None]) + held**2 * np.eye(len(chosen))
        downhill = slopes.T @ (weight * off) + held**2 * (at - origin)[chosen]
        while damping < 1e6:
            move = np.linalg.solve(normal + damping * np.diag(np.diag(normal)), downhill)
            tried = at.copy()
            tried[chosen] -= np.clip(move, -1, 1)
            after = residuals(tried)
            if (now := cost(after, tried)) < best:
                break
            damping *= 4
        else:
            break
        gain, best, at, off = best - now, now, tried, after
        damping /= 3
        if gain < 1e-4 * best:
            break
    return to_constants(at)
