"""Latencies of the paper's V100, from the logs that its authors' earlier platform published.

`v100.csv` holds medians in ms by batch and share of TensorRT models, from GSLICE's platform on
the same kind of GPU (BSD, github.com/adityadhakal/nfv_gpu_platform). Between measured shares a
straight line is taken. p99 lies 0.3 to 1.1 % above the medians there.
"""

import csv
from functools import cache
from pathlib import Path
from typing import Final

from interlace.core.gpu_kinds import GPU_KINDS
from interlace.core.profile import LatencyPoint, Profile

#: Figure 1 and section IV-B: SLO, and the shares of controlled spatial sharing.
FIGURE_1_SLO_MS: Final = 50.0
FIGURE_1_SHARES_PCT: Final = {"alexnet": 15, "mobilenet": 15, "resnet50": 30, "vgg19": 40}
#: Figure 9 and section V-D, ResNet-50. One row: four instances of 25 % over one of 100 % ("more
#: than doubles", "about 25 %"). Eight rows: five of 20 % over one; latency "well below 50 ms".
FOUR_OVER_ONE: Final = 2.0
FOUR_LATENCY: Final = 1.25
FIVE_OVER_ONE: Final = 1.5
INTERACTIVE_MS: Final = 50.0
#: Table III and section V-F: deadline and round; shares; throughput over temporal sharing.
ROUND_MS: Final = 30.0
TABLE_3_SHARES_PCT: Final = {
    **{"mobilenet": 25, "vgg-face": 40, "resnet-car": 50},
    **{"resnext50": 50, "yolo": 60},
}
RECOG_GAIN: Final = 4.0
SYSTEM_GAIN: Final = 3.0
#: Table IV and section VI-B: rate for each GPU, SLOs, and what Multi-Model advised (count, %).
TABLE_4_RPS: Final = 3800.0
TABLE_4_SLOS_MS: Final = {"alexnet": 20.0, "mobilenet": 20.0, "resnet50": 30.0, "vgg19": 50.0}
ADVISED: Final = {"alexnet": (4, 25), "mobilenet": (4, 25), "resnet50": (2, 50), "vgg19": (2, 50)}
INSTANCES_GAIN: Final = 2.0


V100: Final = GPU_KINDS["v100"]
MODELS: Final = ("alexnet", "mobilenet", "resnet50", "vgg19")
#: p95 and p99 over the median, medians over each model's points of the logs.
SPREAD: Final = {
    "alexnet": (1.0018, 1.0076),
    "mobilenet": (1.0025, 1.0112),
    "resnet50": (1.0043, 1.0086),
    "vgg19": (1.0020, 1.0032),
}
#: Weights as 32-bit floats: 61.1, 4.2, 25.6 and 143.7 million.
WEIGHTS_BYTES: Final = {
    "alexnet": 244_400_000,
    "mobilenet": 16_800_000,
    "resnet50": 102_400_000,
    "vgg19": 574_800_000,
}
#: 224 x 224 x 3 floats, and a thousand classes.
INPUT_BYTES, OUTPUT_BYTES = 602_112, 4_000

_Curve = dict[int, float]


@cache
def logs() -> dict[tuple[str, int], _Curve]:
    """Medians in ms by share, for each model and batch."""
    with (Path(__file__).parent / "v100.csv").open(encoding="utf-8") as file:
        return {
            (row["model"], int(row["batch"])): {int(k): float(row[k]) for k in row if k.isdigit()}
            for row in csv.DictReader(file)
        }


def at(curve: _Curve, share_pct: float) -> float:
    """The latency at a share, on a straight line; below the smallest, time times share stays."""
    shares = sorted(curve)
    if share_pct <= shares[0]:
        return curve[shares[0]] * shares[0] / share_pct
    above = next(share for share in shares if share >= share_pct)
    below = max(share for share in shares if share <= share_pct)
    part = (share_pct - below) / (above - below) if above > below else 0.0
    return curve[below] + (curve[above] - curve[below]) * part


@cache
def profile(model: str, scale: float = 1.0, kind: str = "v100") -> Profile:
    """A model at every share that the GPU can be cut into.

    With ``scale`` a share is that of a GPU with so many times the SMs of a V100.
    """
    p95, p99 = SPREAD[model]
    points: dict[tuple[int, int], LatencyPoint] = {}
    for (name, batch), curve in logs().items():
        if name == model:
            for share in GPU_KINDS[kind].shares_pct:
                ms = at(curve, share * scale)
                points[batch, share] = LatencyPoint(ms, ms * p95, ms * p99, 1000)
    return Profile(model, "gslice", kind, WEIGHTS_BYTES[model], 10**8, points)


def t4(model: str) -> Profile:
    """A model on a T4, taken for half a V100: 40 of its 80 SMs, of the same number of cores."""
    return profile(model, 0.5, "t4")
