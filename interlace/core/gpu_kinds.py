"""Kinds of GPU as data: units, memory, and how each may be cut."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Final, NamedTuple

from interlace.core.hardware import Fleet, Gpu, Trait

_GB: Final = 10**9
#: MPS takes any percentage (CUDA_MPS_ACTIVE_THREAD_PERCENTAGE); finer steps than these differ by
#: less than profiles do from one day to the next.
_MPS_PCT: Final = tuple(range(5, 101, 5))
_MPS: Final = frozenset(
    {Trait.OVERLAPPED_REORGANISATION, Trait.HOST_ACCESS, Trait.INPUT_POOL, Trait.SHARE_AT_LAUNCH}
)
#: Compute slices of MIG's instances on an A100 and where they may begin; 3g takes the memory of
#: four slices, so that two of them fill the GPU (NVIDIA MIG user guide, A100 profiles).
_MIG_STARTS: Final = ((1, range(7)), (2, (0, 2, 4)), (3, (0, 4)), (4, (0,)), (7, (0,)))
#: Bytes of memory of an A100-80GB's instances (1g.10gb to 7g.80gb).
_MIG_MEMORY: Final = {1: 10 * _GB, 2: 20 * _GB, 3: 40 * _GB, 4: 40 * _GB, 7: 80 * _GB}


def _slices_pct(slices: int) -> int:
    """The share of a MIG instance: rounded down, so that what stands side by side is <= 100."""
    return 100 * slices // 7


def _mig_layouts() -> tuple[tuple[int, ...], ...]:
    """Largest sets of MIG instances that may stand side by side, as shares."""
    found: set[tuple[int, ...]] = set()

    def fill(taken: frozenset[int], shares_pct: tuple[int, ...], first: int) -> None:
        found.add(tuple(sorted(shares_pct)))
        for slices, starts in _MIG_STARTS:
            for start in (one for one in starts if one >= first):
                width = 4 if slices == 3 else slices
                cells = frozenset(range(start, min(start + width, 8)))
                if not cells & taken:
                    fill(taken | cells, (*shares_pct, _slices_pct(slices)), start + 1)

    fill(frozenset(), (), 0)
    counted = {one: Counter(one) for one in found}
    inside = {one for one in found for other in found - {one} if counted[one] <= counted[other]}
    return tuple(sorted(found - inside))


def _green(units: int, block: int = 8) -> tuple[int, ...]:
    """Shares of green contexts: multiples of ``block`` SMs (sm_90), rounded down, and the whole."""
    return (*(100 * count // units for count in range(block, units, block)), 100)


def _mps(kind: str, units: int, memory_bytes: int) -> Gpu:
    return Gpu("", kind, units, memory_bytes, _MPS_PCT, _MPS)


#: Templates, without an id, by name. ``fraction`` gives the true part of the GPU that a share is.
GPU_KINDS: Final[Mapping[str, Gpu]] = MappingProxyType(
    {
        gpu.kind: gpu
        for gpu in (
            _mps("p100", 56, 16 * _GB),  # D-STACK Figure 3; units, bytes: NVIDIA's data sheet
            _mps("v100", 80, 16 * _GB),  # D-STACK section 3, testbed
            _mps("t4", 40, 16 * _GB),  # D-STACK section 7.1
            _mps("titan-rtx", 72, 24 * _GB),  # E2bird Table 5; bytes: NVIDIA's data sheet
            _mps("2080ti", 68, 11 * _GB),  # gpulet Table 3; units, bytes: NVIDIA's data sheet
            # From here on units and bytes are those of NVIDIA's data sheets.
            _mps("a10", 72, 24 * _GB),
            _mps("a30", 56, 24 * _GB),
            _mps("a100", 108, 80 * _GB),
            _mps("a100-40gb", 108, 40 * _GB),
            _mps("l4", 58, 24 * _GB),
            _mps("l40s", 142, 48 * _GB),
            _mps("rtx-3090", 82, 24 * _GB),
            _mps("rtx-4090", 128, 24 * _GB),
            _mps("rtx-pro-6000", 188, 96 * _GB),
            Gpu(
                id="",
                kind="a100-mig",
                units=7,
                memory_bytes=80 * _GB,
                shares_pct=tuple(_slices_pct(slices) for slices in _MIG_MEMORY),
                layouts=_mig_layouts(),
                walls=tuple((_slices_pct(s), size) for s, size in _MIG_MEMORY.items()),
            ),
            # SXM; 128 of an h100's 132 SMs can be parted.
            Gpu("", "h100", 132, 80 * _GB, _green(132), frozenset(Trait)),
            Gpu("", "h200", 132, 141 * _GB, _green(132), frozenset(Trait)),
            Gpu("", "b200", 148, 180 * _GB, _green(148), frozenset(Trait)),
        )
    }
)


class GpuRates(NamedTuple):
    """What a kind of GPU computes and moves at most, without sparsity; ``l2_mb`` is its L2 cache.

    ``fp16_tflops`` are tensor cores that add up in FP32, ``tf32_tflops`` where it has them.
    """

    fp32_tflops: float
    tf32_tflops: float
    fp16_tflops: float
    dram_gb_s: float
    l2_mb: float


#: From NVIDIA's data sheets, and of GeForce and RTX its architecture white papers (Turing, GA102,
#: Ada, RTX Blackwell: "FP16 Tensor TFLOPS with FP32 accumulate"); SXM where there is one.
GPU_RATES: Final[Mapping[str, GpuRates]] = MappingProxyType(
    {
        "p100": GpuRates(10.6, 10.6, 21.2, 732, 4),  # P100 data sheet
        "v100": GpuRates(15.7, 15.7, 125, 900, 6),  # V100 data sheet, SXM2
        "t4": GpuRates(8.1, 8.1, 65, 320, 4),  # T4 data sheet
        "titan-rtx": GpuRates(16.3, 16.3, 130.5, 672, 6),  # Turing white paper
        "2080ti": GpuRates(13.4, 13.4, 53.8, 616, 5.5),  # Turing white paper
        "a10": GpuRates(31.2, 62.5, 125, 600, 6),  # A10 data sheet
        "a30": GpuRates(10.3, 82, 165, 933, 24),  # A30 data sheet
        "a100": GpuRates(19.5, 156, 312, 2039, 40),  # A100 data sheet, 80 GB SXM
        "a100-40gb": GpuRates(19.5, 156, 312, 1555, 40),  # A100 data sheet, 40 GB SXM
        "a100-mig": GpuRates(19.5, 156, 312, 2039, 40),
        "l4": GpuRates(30.3, 60, 121, 300, 48),  # L4 data sheet, half the sparse rates
        "l40s": GpuRates(91.6, 183, 362, 864, 96),  # L40S data sheet
        "rtx-3090": GpuRates(35.6, 35.6, 71, 936, 6),  # GA102 white paper
        "rtx-4090": GpuRates(82.6, 82.6, 165.2, 1008, 72),  # Ada white paper
        "rtx-pro-6000": GpuRates(125, 251.9, 503.8, 1792, 128),  # RTX Blackwell PRO white paper
        "h100": GpuRates(66.9, 494.7, 989.4, 3350, 50),  # H100 data sheet, SXM
        "h200": GpuRates(66.9, 494.7, 989.4, 4800, 50),  # H200 data sheet, SXM
        "b200": GpuRates(75, 1125, 2250, 8000, 126),  # HGX B200 data sheet, an eighth
    }
)


def uniform_fleet(kind: Gpu, count: int) -> Fleet:
    """``count`` accelerators of one kind: gpu0, gpu1, ..."""
    return Fleet(tuple(replace(kind, id=f"gpu{index}") for index in range(count)))
