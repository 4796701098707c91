"""Constants of the law in ``perf.estimate``, fitted by bench/estimate/run.py.

Date: 2026-11-28. Data: timm's inference results
(1137 models on rtx-3090, 1141 models on rtx-4090;
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
            efficiency=(1.071, 0.7059, 0.02444, 1.176, 1.428, 1.0, 1.0, 1.0, 1.0, 1.0),
            bandwidth=(0.5461, 0.5024, 0.4787, 0.5388, 1.039, 0.3136, 4.8, 0.2452, 0.3333, 0.8004),
            half_k=(65.67, 38.95, 0.778, 202.8, 22.78, 1.0, 1.0, 1.0, 1.0, 1.0),
            half_n=(19.51, 14.37, 0.009976, 14.73, 22.78, 0.01, 0.01, 0.01, 0.01, 0.01),
            tile=1.019,
            cached=0.3082,
            norm=2.882,
            winograd=1.0,
            launch_us=2.069,
            host_us=5.0,
        ),
        "single": LawConstants(
            efficiency=(1.018, 0.7059, 0.04515, 1.229, 1.428, 1.0, 1.0, 1.0, 1.0, 1.0),
            bandwidth=(0.3602, 0.5024, 0.5038, 0.3527, 1.039, 0.3147, 4.8, 0.2617, 0.3333, 0.8227),
            half_k=(55.74, 38.95, 0.7425, 201.0, 22.78, 1.0, 1.0, 1.0, 1.0, 1.0),
            half_n=(18.32, 14.37, 0.009916, 14.72, 22.78, 0.01, 0.01, 0.01, 0.01, 0.01),
            tile=2.221,
            cached=0.3017,
            norm=3.114,
            winograd=1.462,
            launch_us=2.196,
            host_us=5.0,
        ),
    }
)
#: By precision, and what is known: the graph and other models on this kind of GPU, the graph alone
#: on a kind without measurements, points of the model on another GPU, points on this.
INTERVALS: Final[Mapping[tuple[str, str], ErrorInterval]] = MappingProxyType(
    {
        ("half", "graph"): ErrorInterval(0.856, 1.233),
        ("half", "unseen"): ErrorInterval(0.869, 1.61),
        ("half", "other_gpu"): ErrorInterval(0.896, 1.533),
        ("single", "graph"): ErrorInterval(0.787, 1.41),
        ("any", "same_gpu"): ErrorInterval(0.761, 1.22),
        ("single", "unseen"): ErrorInterval(0.758, 1.799),
    }
)
#: A 99th percentile of latency over its median.
TAIL: Final = 1.006
#: Kinds with measurements of other models, by precision.
CHECKED_KINDS: Final[Mapping[str, frozenset[str]]] = MappingProxyType(
    {
        "half": frozenset({"rtx-3090", "rtx-4090"}),
        "single": frozenset({"v100", "a100-mig"}),
    }
)
