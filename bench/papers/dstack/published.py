"""What the D-STACK paper prints as numbers, and where. Bars and curves are only drawn there."""

from collections.abc import Mapping
from typing import Final, NamedTuple


class Printed(NamedTuple):
    """A row of Table 6: knee in %, SLO in ms, runtime in ms of a batch of 16 at the knee."""

    knee_pct: int
    slo_ms: float
    run_ms: float


#: Table 6.
TABLE_6: Final[Mapping[str, Printed]] = {
    "mobilenet": Printed(20, 25.0, 10.0),
    "alexnet": Printed(30, 25.0, 8.0),
    "bert": Printed(30, 25.0, 9.0),
    "resnet50": Printed(40, 50.0, 28.0),
    "vgg19": Printed(50, 100.0, 55.0),
    "resnet18": Printed(30, 25.0, 12.0),
    "inception": Printed(40, 50.0, 25.0),
    "resnext50": Printed(50, 100.0, 40.0),
}
BATCH: Final = 16

#: Table 1: seconds for 10,000 images of each of four models.
TABLE_1_S: Final = {"triton": 58.61, "dstack": 35.59}
#: Figure 4b's peaks in SMs by N1, from the text of section 4.3.
FIGURE_4B: Final = {20: 9, 40: 24, 60: 31}
#: Figure 4d's peaks in % by batch (Mobilenet), from the text of section 4.4.1.
FIGURE_4D: Final = {1: 10, 2: 20, 4: 40, 8: 50}
#: Figure 9a to 9c: mean use of the GPU in %, from the text of section 6.1.
FIGURE_9_PCT: Final = {"temporal": 44.0, "dstack-plain": 60.0, "dstack": 74.0}
#: Figure 9d: use in %, and D-STACK's throughput over the ideal one's ("slightly higher than 90 %").
IDEAL_PCT, DSTACK_PCT, DSTACK_OF_IDEAL = 95.0, 86.0, 0.90
#: Section 6.2: knee in % and runtime in ms of three ConvNets.
CONVNETS: Final = {"convnet1": (30, 10.3), "convnet2": (40, 14.6), "convnet3": (60, 15.4)}
#: Figure 10a in words: D-STACK's throughput over temporal sharing's.
OVER_TEMPORAL: Final = {"alexnet": 4.0, "mobilenet": 4.0, "resnet50": 2.0, "vgg19": 2.0}
#: Figure 10a in words: at least this part of max-throughput's Alexnet.
OF_MAX_THROUGHPUT: Final = 0.8
#: Section 7: requests per second offered in C-2 to C-4, where they are given, and in C-7.
FEW_RPS: Final = {"alexnet": 700.0, "mobilenet": 700.0, "resnet50": 320.0, "vgg19": 160.0}
SEVEN_RPS: Final = {
    **dict.fromkeys(("alexnet", "mobilenet", "resnet18"), 440.0),
    **dict.fromkeys(("resnet50", "inception"), 220.0),
    **dict.fromkeys(("resnext50", "vgg19"), 80.0),
}
#: Section 7 on C-7: requests missed in %, D-STACK's and at least the others'; use; gain in words.
SEVEN_MISSED_PCT: Final = {"dstack": 10.0, "others": 68.0}
SEVEN_USED_PCT, SEVEN_GAIN = 92.0, 3.0
#: Figure 11b in words: use in % in each of its sessions.
FIGURE_11B_PCT: Final = 85.0
#: Section 7.1: D-STACK's throughput over temporal sharing's on four T4s ("160 % higher").
CLUSTER_GAIN: Final = 2.6
