"""What DeepPlan prints, and its eight models on a V100, layer by layer, shaped after that.

Layers, their kinds and bytes are those of the published plans (`plans.csv`; MIT,
github.com/csl-ajou/DeepPlan). Their times were never published, and are made so:

* A copy takes its bytes over the link and a fixed time a layer, both fitted to Table 2's four
  serial bandwidths.
* Execution: the work of a layer for 384 tokens (GPT-2 1,024, which the paper prints as 1,204) or
  224 x 224 pixels, at one rate, or the least time of a layer. The whole is scaled to the model's
  warm time: printed for BERT-Base; on demand less the copy for ResNet-50 (README); PipeSwitch's
  time less its stalls (Table 4, section 2.1) for the others.
* Reading from the host takes the cache lines that Table 1 counts over the same link, or the
  execution if that is longer, and a little more: a table is read by rows, linear layers again for
  every 31 tokens, large 3 x 3 convolutions 1.8 times, and 1 x 1 convolutions again for every 300
  pixels of their output, so that small ones in early stages are better loaded, as published.
* A layer whose weights are copied waits for an event, and was profiled under Python hooks: 0.02 ms
  each, fitted to the README's five times of ResNet-50.
"""

import csv
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import Final, NamedTuple

from interlace.core.loading import OVER_LINKS, HostLinks, LoadStep
from interlace.core.profile import LayerProfile
from interlace.perf.cold_start import layer_times
from interlace.policy.cold_starts.catalog import COLD_POLICIES

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


_MIB: Final = 1 << 20
#: What each layer adds to a copy, fitted to Table 2.
_LAYER_MS: Final = 0.021
#: Work per ms at which PyTorch runs large layers of FP32, and the least time of any layer; only
#: their relation matters, since the whole is scaled.
_WORK_PER_MS: Final = 10e9
_LEAST_MS: Final = 0.02
#: What reading from the host adds whatever is read.
_HOST_MS: Final = 0.012
_BLOCKS: Final = {"resnet50": (3, 4, 6, 3), "resnet101": (3, 4, 23, 3)}
_ROWS_A_READ: Final = 31  #: of linear layers: 384 tokens read a matrix 12.1 to 12.4 times
_PIXELS_A_READ: Final = 300
_LARGE_CONVOLUTION_READS: Final = 1.82


#: What waiting for a copy's event adds to a layer, and what the profiler's hooks do.
_WAIT_MS: Final = 0.02
_HOOK_MS: Final = 0.02


@dataclass(frozen=True, slots=True)
class Machine:
    """Links in bytes per ms."""

    link_bytes_per_ms: float
    nvlink_bytes_per_ms: float

    @property
    def two_links(self) -> HostLinks:
        """The GPU's own link and another one's."""
        return HostLinks(1, self.nvlink_bytes_per_ms)


#: A p3.8xlarge: PCIe 3.0, fitted to Table 2; two NVLinks of 25 GB/s between two GPUs (data sheet).
V100: Final = Machine(11.4e6, 50e6)


class PublishedLayer(NamedTuple):
    """A layer of a published plan, and whether it is on the host: at first, and as planned."""

    kind: str
    nbytes: int
    initial: bool
    planned: bool


@cache
def plans() -> dict[str, tuple[PublishedLayer, ...]]:
    """The published plans by model; layers without weights are on the host in both."""
    found: dict[str, list[PublishedLayer]] = {}
    with (Path(__file__).parent / "plans.csv").open(encoding="utf-8") as file:
        for row in csv.DictReader(file):
            nbytes = round(float(row["size_mb"]) * _MIB)
            marks = (row["initial"] != "load", row["planned"] != "load")
            found.setdefault(row["model"], []).append(PublishedLayer(row["type"], nbytes, *marks))
    return {model: tuple(layers) for model, layers in found.items()}


def warm_ms(model: str) -> float:
    """The time of one row with everything resident."""
    if model == "bert_base":
        return BERT_WARM_MS
    if model == "resnet50":
        return RESNET50_MS["copy"] - sum(map(_copy_ms, plans()[model]))
    stalled = STALLED_BERT if "bert" in model else STALLED_OTHERS
    return TABLE_4[model].pipeswitch_ms * (1 - stalled)


def layers(model: str, rows: float = 1) -> list[LayerProfile]:
    """The layers of one model for a batch of ``rows``, or for a part of a row's tokens."""
    shapes = _shapes(model)
    ones = [max(_LEAST_MS, one.work / _WORK_PER_MS) for one in shapes]
    alike = warm_ms(model) / sum(ones)
    scaled = [max(_LEAST_MS, rows * one.work / _WORK_PER_MS) * alike for one in shapes]
    return [
        LayerProfile(
            f"{index}:{one.kind}",
            one.nbytes,
            _copy_ms(one),
            run_ms,
            max(run_ms, shape.read_bytes * _times(one, rows) / V100.link_bytes_per_ms)
            + (_HOST_MS if one.nbytes else 0.0),
            one.kind,
        )
        for index, (one, shape, run_ms) in enumerate(
            zip(plans()[model], shapes, scaled, strict=True)
        )
    ]


def planned(name: str, found: Sequence[LayerProfile], links: HostLinks) -> tuple[LoadStep, ...]:
    """What an answer to a cold start makes of the layers: the papers' as profiled under hooks.

    Ours is told what waiting adds to a layer that is copied.
    """
    if name == "interlace":
        known = [replace(o, run_ms=o.run_ms + _WAIT_MS) if o.weights_bytes else o for o in found]
        return COLD_POLICIES[name].cold_start(known, links).steps
    profiled = [
        replace(one, run_ms=one.run_ms + _HOOK_MS, run_host_ms=one.run_host_ms + _HOOK_MS)
        for one in found
    ]
    return COLD_POLICIES[name].cold_start(profiled, links).steps


def waiting(found: Sequence[LayerProfile], steps: Sequence[LoadStep]) -> list[LayerProfile]:
    """The layers with what waiting for copies adds."""
    return [
        replace(one, run_ms=one.run_ms + _WAIT_MS) if step.via in OVER_LINKS else one
        for one, step in zip(found, steps, strict=True)
    ]


def cold_ms(name: str, found: Sequence[LayerProfile], links: HostLinks = V100.two_links) -> float:
    """A cold start of these layers by an answer's name; nothing else goes on."""
    steps = planned(name, found, links)
    if name == "copy":
        return layer_times(found, steps, links, overlapped=False)[-1].ends_ms
    return layer_times(waiting(found, steps), steps, links)[-1].ends_ms


class _Shape(NamedTuple):
    """Multiplications and additions of a layer for one row, and bytes read from the host."""

    work: float
    read_bytes: float


def _times(layer: PublishedLayer, rows: float) -> float:
    """How often a batch reads what one row does."""
    return 1 if layer.kind in ("BatchNorm2d", "Conv2d") else rows


def _copy_ms(layer: PublishedLayer) -> float:
    return _LAYER_MS + layer.nbytes / V100.link_bytes_per_ms if layer.nbytes else 0.0


def _shapes(model: str) -> list[_Shape]:
    if model in _BLOCKS:
        return list(_of_pixels(plans()[model], _convolutions(_BLOCKS[model])))
    return list(_of_tokens(plans()[model], 1024 if "gpt2" in model else 384))


def _of_tokens(found: Sequence[PublishedLayer], tokens: int) -> Iterator[_Shape]:
    width_bytes = next(one.nbytes for one in found if one.kind == "LayerNorm") / 2
    for index, one in enumerate(found):
        pooler = one.kind == "Linear" and index >= len(found) - 2
        rows = 1 if pooler else tokens
        match one.kind:
            case "Embedding":
                yield _Shape(0.0, min(one.nbytes, rows * width_bytes))
            case "LayerNorm":
                yield _Shape(0.0, rows * one.nbytes)
            case _:
                again = max(1.0, rows / _ROWS_A_READ)
                yield _Shape(rows * one.nbytes / 2, again * one.nbytes)


def _of_pixels(
    found: Sequence[PublishedLayer], convolutions: Iterator[tuple[int, int]]
) -> Iterator[_Shape]:
    for one in found:
        if one.kind == "Conv2d":
            kernel, pixels = next(convolutions)
            yield _Shape(pixels * one.nbytes / 2, _reads(kernel, pixels, one.nbytes) * one.nbytes)
        else:
            yield _Shape(one.nbytes / 2, one.nbytes)


def _reads(kernel: int, pixels: int, nbytes: int) -> float:
    if kernel == 1:
        return max(1.0, pixels / _PIXELS_A_READ)
    if kernel == 3:
        return _LARGE_CONVOLUTION_READS if nbytes > _MIB else 1.0
    return max(1.0, pixels / _PIXELS_A_READ)


def _convolutions(blocks: Sequence[int]) -> Iterator[tuple[int, int]]:
    """Kernel and pixels of the output of each convolution, in the order of a ResNet's modules."""
    yield 7, 112 * 112
    for stage, count in enumerate(blocks):
        side = 56 >> stage
        for block in range(count):
            before = side * 2 if stage and not block else side
            yield 1, before * before
            yield 3, side * side
            yield 1, side * side
            if not block:
                yield 1, side * side  # the shortcut's


#: A p3.8xlarge: two switches with two GPUs each (section 4.3.3).
SWITCH_OF: Final = (0, 0, 1, 1)
