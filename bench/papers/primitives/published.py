"""What the primitives paper says in its text. Its tables and figures are pictures: what is only in
them is not here."""

from typing import Final

#: Figure 1 and section IV-B: SLO, and the shares of controlled spatial sharing.
FIGURE_1_SLO_MS: Final = 50.0
FIGURE_1_SHARES_PCT: Final = {"alexnet": 15, "mobilenet": 15, "resnet50": 30, "vgg19": 40}
#: Figure 8 and section V-C: rates before and after, when, shares, and the service that is missing.
FIGURE_8_RPS: Final = (520.0, 680.0)
FIGURE_8_AT_S: Final = 3.0
FIGURE_8_SHARES_PCT: Final = (40, 50)
PLAIN_DOWNTIME_MS: Final = 3000.0
OVERLAPPED_DOWNTIME_MS: Final = 0.2
#: Figure 9 and section V-D, ResNet-50. One row: four instances of 25 % over one of 100 % ("more
#: than doubles", "about 25 %"). Eight rows: five of 20 % over one; latency "well below 50 ms".
FOUR_OVER_ONE: Final = 2.0
FOUR_LATENCY: Final = 1.25
FIVE_OVER_ONE: Final = 1.5
INTERACTIVE_MS: Final = 50.0
#: Figure 12 and section VI-C: shares of each instance.
FIGURE_12_SHARES_PCT: Final = {"alexnet": 25, "resnet50": 40}
#: Table II and section V-E: instances more in one T4 (16 GB) with shared weights.
MORE_INSTANCES: Final = {"resnet50": 1, "vgg19": 2, "resnext50": 2}
#: Sections I and VII: models more in a GPU.
MORE_MODELS_PCT: Final = (20.0, 30.0)
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
