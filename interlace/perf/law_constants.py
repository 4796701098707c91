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
            launch_us=2.26,
            host_us=5.0,
        ),
        "single": LawConstants(
            efficiency=(1.056, 0.7055, 0.0375, 1.142, 1.495, 1.0, 1.0, 1.0, 1.0, 1.0),
            bandwidth=(
                0.5084,
                0.5852,
                0.4558,
                0.1414,
                1.059,
                0.3301,
                3.962,
                0.2292,
                0.3248,
                0.7949,
            ),
            half_k=(57.43, 32.91, 0.7899, 206.5, 24.2, 1.0, 1.0, 1.0, 1.0, 1.0),
            half_n=(15.82, 12.9, 0.009938, 14.3, 24.2, 0.01, 0.01, 0.01, 0.01, 0.01),
            tile=2.865,
            cached=0.3111,
            norm=2.419,
            launch_us=2.514,
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
