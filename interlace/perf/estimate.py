"""Latency of a model from its graph: a law for each kernel, with few constants per kind.

A kernel takes the p-norm of its time in arithmetic and in memory. Arithmetic of products is
FLOPs over peak, divided by the efficiency of the kind, which falls with short sums (``k``) and
narrow results (``n``). A tile of few rows takes as long as a full one. To this comes the time of
one tile, which no further SM shortens (D-STACK, section 4: parallel tiles against SMs). A batch
lasts at least as long as its launches.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Final, NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt

from interlace.core.gpu_kinds import GPU_RATES
from interlace.core.hardware import Gpu
from interlace.core.profile import LatencyPoint, LaunchOverhead, Profile
from interlace.core.work import KINDS, LayerWork, ModelWork
from interlace.perf.interference import longer

_Floats = npt.NDArray[np.float64]
#: Results that one SM computes together (a frequent tile of cuBLAS and cuDNN), and the longest sum.
_TILE_ROWS: Final = 128
_TILE_COLUMNS: Final = 64
_SPLIT_K: Final = 512
#: Products in which each input value has a part, of a 3 x 3 convolution without stride; Winograd's
#: algorithm saves some of them (Lavin and Gray, CVPR 2016). At edges it has fewer parts.
_CONV: Final = KINDS.index("conv")
_TAPS: Final = 9
_EDGES: Final = 0.6
#: Parts of the SMs beyond which DRAM is no faster: SMs can ask for more than it gives.
_SATURATES: Final = 0.5
#: SMs of a compute slice of an A100's MIG (user guide: 14 a slice).
_SLICE_SMS: Final = 14
#: Boards of so little power that no peak is kept, whatever computes.
_LOW_POWER: Final = ("t4", "l4", "a10")
#: Part of the peak on tensor cores that is kept, next to GeForce cards (1), which the constants
#: were fitted to: other boards are held by their power limit. Assumed, not measured here.
_SUSTAINED: Final[Mapping[str, float]] = MappingProxyType(
    {
        **dict.fromkeys(_LOW_POWER, 0.6),
        **dict.fromkeys(("h100", "h200", "b200"), 0.65),
        **dict.fromkeys(("v100", "a30", "a100", "a100-40gb", "a100-mig", "l40s"), 0.75),
    }
)
#: Base over boost clock (1290 and 1530 MHz, data sheet), to which GSLICE's FP32 grids come down as
#: more SMs compute.
_BASE_CLOCK: Final[Mapping[str, float]] = MappingProxyType({"v100": 0.84})
#: What a process takes of a GPU's memory for its CUDA context and the kernels of its libraries.
_CONTEXT_BYTES: Final = 500 * 10**6


class LawConstants(msgspec.Struct, frozen=True):
    """The constants of the law, by kind in the order of ``KINDS`` where there are several.

    ``efficiency`` and ``bandwidth`` are parts of the peak; ``half_k`` and ``half_n`` the lengths at
    which a product is half as efficient; ``tile`` scales the time of one tile, ``cached`` is what
    the L2 cache saves of memory traffic that fits, ``norm`` the p of the p-norm. ``winograd``
    divides the arithmetic of 3 x 3 convolutions. ``launch_us`` is what a kernel costs the GPU,
    ``host_us`` what it costs the host that launches one by one.
    """

    efficiency: tuple[float, ...]
    bandwidth: tuple[float, ...]
    half_k: tuple[float, ...]
    half_n: tuple[float, ...]
    tile: float
    cached: float
    norm: float
    winograd: float
    launch_us: float
    host_us: float


class Rates(NamedTuple):
    """Peak rates of the accelerator that a batch runs on, in one precision."""

    flops: float  #: per second
    dram: float  #: bytes per second
    l2: float  #: bytes
    sms: float
    value_bytes: float


class Layers(NamedTuple):
    """Kernels as columns; ``kind`` is the place in ``KINDS``, ``read`` the part of ``moved``."""

    kind: npt.NDArray[np.int64]
    flops: _Floats
    weights: _Floats
    moved: _Floats
    read: _Floats
    m: _Floats
    n: _Floats
    k: _Floats


def columns(layers: Sequence[LayerWork]) -> Layers:
    """The kernels of one or several models as columns."""
    rows = np.array(
        [
            (one.flops, one.weights, one.read + one.written, one.read, one.m, one.n, one.k)
            for one in layers
        ]
    ).reshape(-1, 7)
    kinds = np.array([KINDS.index(one.kind) for one in layers], dtype=np.int64)
    return Layers(kinds, *rows.T)


def kernel_s(
    work: Layers,
    constants: LawConstants,
    gpu: Rates,
    rows: float,
    share: float = 1.0,
    dram_share: float | None = None,
) -> _Floats:
    """Seconds of each kernel for a batch on a share (0..1) of the accelerator."""  # fmt: skip
    of = [np.array(one)[work.kind] for one in (
        constants.efficiency, constants.bandwidth, constants.half_k, constants.half_n)]  # fmt: skip
    efficiency, bandwidth, half_k, half_n = of
    part = min(1.0, share / _SATURATES) if dram_share is None else dram_share
    m = work.m * rows
    padded = np.where((work.k > 1) & (m > 1), np.maximum(m, _TILE_ROWS), m)
    work_s = work.flops * rows / (gpu.flops * efficiency) * padded / np.maximum(m, 1e-9)
    work_s = work_s * (1 + half_k / work.k) * (1 + half_n / work.n)
    taps = work.k * work.m / np.maximum(work.read, 1e-9)
    winograd = (work.kind == _CONV) & (abs(taps - _TAPS) < _EDGES)
    work_s = np.where(winograd, work_s / constants.winograd, work_s)
    # A product of few tiles is cut along its sums, too (split-k).
    tile = np.minimum(padded, _TILE_ROWS) * np.minimum(work.n, _TILE_COLUMNS)
    parts = padded * work.n / np.maximum(tile, 1e-9) * np.maximum(1, work.k / _SPLIT_K)
    arithmetic = work_s / share + constants.tile * work_s * gpu.sms / np.maximum(parts, 1e-9)
    nbytes = gpu.value_bytes * (work.moved * rows + work.weights)
    saved = 1 - constants.cached * gpu.l2 / (gpu.l2 + nbytes)
    memory = nbytes * saved / (gpu.dram * part * bandwidth)
    found = (arithmetic**constants.norm + memory**constants.norm) ** (1 / constants.norm)
    seconds: _Floats = found + 1e-6 * constants.launch_us
    return seconds


class ErrorInterval(msgspec.Struct, frozen=True):
    """Measured over estimated latency, 10th and 90th percentile over models left out of the fit."""

    low: float
    high: float


class EstimateCorrection(msgspec.Struct, frozen=True):
    """What measured points say: a factor on the estimate, and the interval that is left."""

    factor: float
    interval: ErrorInterval
    source: str


def rates_of(kind: str, half: bool, sms: int, part: float = 1.0) -> Rates:
    """Peak rates of a kind of GPU for values of two bytes on tensor cores, or of four.

    The clock of values of four bytes may fall with the ``part`` of the SMs that computes.

    Raises:
        KeyError: its rates are not known.
    """
    of = GPU_RATES[kind]
    sustained = _SUSTAINED.get(kind, 1.0)
    clock = 1 - (1 - _BASE_CLOCK.get(kind, 1.0)) * part
    plain = sustained if kind in _LOW_POWER else clock
    tflops, nbytes = (sustained * of.fp16_tflops, 2.0) if half else (plain * of.fp32_tflops, 4.0)
    return Rates(1e12 * tflops, 1e9 * of.dram_gb_s, 1e6 * of.l2_mb, float(sms), nbytes)


def sms_of(gpu: Gpu) -> int:
    """SMs of the whole accelerator; the units of a GPU with layouts are slices."""
    return _SLICE_SMS * gpu.units if gpu.layouts else gpu.units


def latency_ms(
    work: ModelWork,
    gpu: Gpu,
    half: bool,
    batch: int,
    share_pct: int,
    constants: LawConstants,
    beside: bool = False,
) -> float:
    """Median latency of a batch on a share of an accelerator, alone or ``beside`` busy others.

    Alone, a share has more of the clock and of DRAM than is left to it beside others.
    """
    part = gpu.fraction(share_pct)
    rates = rates_of(gpu.kind, half, sms_of(gpu), 1.0 if beside else part)
    walls = dict(gpu.walls)
    dram = part if beside else None
    if share_pct in walls:
        dram = walls[share_pct] / gpu.memory_bytes
    layers = columns(work.layers)
    each = kernel_s(layers, constants, rates, batch, part, dram)
    host_s = 1e-6 * constants.host_us * len(work.layers) if work.fused else 0.0
    return 1000 * max(float(each.sum()), host_s, 1e-6 * constants.launch_us)


def estimated_profile(
    work: ModelWork,
    gpu: Gpu,
    half: bool,
    max_batch: int,
    constants: LawConstants,
    correction: EstimateCorrection,
    tail: float,
    beside: bool = False,
) -> Profile:
    """A profile over batch and share; its figures are corrected, its ``interval`` marks it.

    Shares are alone on the accelerator, or ``beside`` busy others.

    Memory is weights, twice the activations of the largest kernel, and a context. ``tail`` is a
    99th percentile over a median.
    """
    value_bytes = 2 if half else 4
    batches = [1 << power for power in range(max(1, max_batch).bit_length())]
    points = {}
    for batch in sorted({*batches, max(1, max_batch)}):
        for share in gpu.shares_pct:
            ms = correction.factor * latency_ms(work, gpu, half, batch, share, constants, beside)
            points[batch, share] = LatencyPoint(ms, ms * tail, ms * tail, 0)
    activations = 2 * value_bytes * work.peak_values * max(1, max_batch)
    return Profile(
        "",
        "",
        gpu.kind,
        int(value_bytes * work.weights),
        int(activations) + _CONTEXT_BYTES,
        points,
        LaunchOverhead(),
        interval=(correction.interval.low, correction.interval.high),
    )


def scaled(profile: Profile, factor: float) -> Profile:
    """The profile with every latency multiplied."""
    points = {key: longer(one, factor) for key, one in profile.points.items()}
    return replace(profile, points=points)
