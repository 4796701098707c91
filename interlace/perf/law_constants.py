"""Constants of the law in ``perf.estimate``, fitted by bench/estimate/run.py.

Date: 2026-11-27. Data: timm's inference results
(1149 models on rtx-3090, 1150 models on rtx-4090;
PyTorch 2.4, FP16, large batches) for ``half``; from there, GSLICE's V100 grids
(TensorRT and CNTK, FP32) for ``single``.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from interlace.perf.estimate import ErrorInterval, LawConstants

#: By precision: values of two bytes on tensor cores, or of four.
LAWS: Final[Mapping[str, LawConstants]] = MappingProxyType(
    {
        "half": LawConstants(
            efficiency=(1.04, 0.7055, 0.02865, 1.179, 1.495, 1.0, 1.0, 1.0, 1.0, 1.0),
            bandwidth=(
                0.5881,
                0.5852,
                0.4994,
                0.5367,
                1.059,
                0.3302,
                3.962,
                0.2459,
                0.3248,
                0.7949,
            ),
            half_k=(58.79, 32.91, 0.8072, 206.1, 24.2, 1.0, 1.0, 1.0, 1.0, 1.0),
            half_n=(16.47, 12.9, 0.009965, 14.3, 24.2, 0.01, 0.01, 0.01, 0.01, 0.01),
            tile=1.127,
            cached=0.3278,
            norm=2.606,
            winograd=1.0,
            launch_us=2.26,
            host_us=5.0,
        ),
        "single": LawConstants(
            efficiency=(0.9929, 0.7055, 0.04695, 1.246, 1.495, 1.0, 1.0, 1.0, 1.0, 1.0),
            bandwidth=(0.3807, 0.5852, 0.5231, 0.3543, 1.059, 0.3311, 3.962, 0.2636, 0.3248, 0.82),
            half_k=(51.74, 32.91, 0.7762, 204.4, 24.2, 1.0, 1.0, 1.0, 1.0, 1.0),
            half_n=(15.65, 12.9, 0.009917, 14.29, 24.2, 0.01, 0.01, 0.01, 0.01, 0.01),
            tile=2.218,
            cached=0.3202,
            norm=2.819,
            winograd=1.481,
            launch_us=2.405,
            host_us=5.0,
        ),
    }
)
#: By precision, and what is measured of a model: nothing, points on another GPU, points on this.
INTERVALS: Final[Mapping[tuple[str, str], ErrorInterval]] = MappingProxyType(
    {
        ("half", "graph"): ErrorInterval(0.807, 1.206),
        ("half", "other_gpu"): ErrorInterval(0.854, 1.08),
        ("single", "graph"): ErrorInterval(0.785, 1.897),
        ("any", "same_gpu"): ErrorInterval(0.66, 1.17),
    }
)
#: A 99th percentile of latency over its median.
TAIL: Final = 1.006
#: Kinds on which the intervals were seen to hold; of others the data sheet's figures are all.
CHECKED_KINDS: Final = frozenset({"rtx-3090", "rtx-4090", "v100", "a100-mig"})
