"""What DeepPlan prints: its tables, and the figures whose heights its text or repository names."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final, NamedTuple

MODELS: Final = (
    "resnet50",
    "resnet101",
    "bert_base",
    "bert_large",
    "roberta_base",
    "roberta_large",
    "gpt2",
    "gpt2_medium",
)


class ColdTimes(NamedTuple):
    """ms of a cold start: PipeSwitch, PT + DHA alone, PT + DHA on both GPUs at once (Table 4)."""

    pipeswitch_ms: float
    alone_ms: float
    both_ms: float


TABLE_4: Final[Mapping[str, ColdTimes]] = MappingProxyType(
    {
        "resnet50": ColdTimes(12.03, 8.93, 11.97),
        "resnet101": ColdTimes(19.85, 17.71, 21.19),
        "bert_base": ColdTimes(40.51, 20.88, 30.45),
        "bert_large": ColdTimes(122.37, 70.56, 108.16),
        "roberta_base": ColdTimes(45.86, 20.83, 34.48),
        "roberta_large": ColdTimes(129.58, 70.26, 107.87),
        "gpt2": ColdTimes(48.41, 33.38, 35.98),
        "gpt2_medium": ColdTimes(134.10, 101.83, 112.71),
    }
)
#: GB/s of one, two and four links at work (Table 2).
TABLE_2: Final[Mapping[str, tuple[float, float, float]]] = MappingProxyType(
    {
        "resnet50": (9.10, 9.13, 7.01),
        "bert_base": (10.87, 10.67, 5.89),
        "roberta_large": (10.94, 10.75, 6.01),
        "gpt2_medium": (11.52, 11.32, 5.96),
    }
)
#: Cache lines of 64 bytes that cross PCIe when a layer is loaded, and when it is read (Table 1).
TABLE_1: Final[Mapping[str, tuple[float, int, int]]] = MappingProxyType(
    {
        "embedding, 1.50 MB": (1.50, 24_580, 18_267),
        "embedding, 89.42 MB": (89.42, 1_465_112, 18_459),
        "convolution, 2.25 MB": (2.25, 36_869, 65_891),
        "convolution, 9.0 MB": (9.0, 147_465, 273_487),
        "linear, 2.25 MB": (2.25, 36_920, 446_276),
        "linear, 9.01 MB": (9.01, 147_660, 1_765_787),
    }
)
#: ms of a cold ResNet-50 in the repository's README: copy, PipeSwitch, DHA, PT, PT + DHA.
RESNET50_MS: Final[Mapping[str, float]] = MappingProxyType(
    {
        "copy": 17.7038,
        "pipeswitch": 11.981,
        "deepplan-dha": 11.2345,
        "deepplan-pt": 9.39064,
        "deepplan": 8.36423,
    }
)
#: ms of a warm BERT-Base (section 1).
BERT_WARM_MS = 9.35
#: Part of PipeSwitch's time that is stall (section 2.1): BERT and RoBERTa 73 to 75 %, the others
#: 27 to 37 %; the middles.
STALLED_BERT, STALLED_OTHERS = 0.74, 0.32
#: PT + DHA over PipeSwitch, one row (section 5.2).
SPEEDUPS: Final[Mapping[str, float]] = MappingProxyType(
    {"bert_base": 1.94, "bert_large": 1.74, "roberta_base": 2.21}
)
