"""Public measurements with the work of their models, as batches for the fit."""

import csv
import json
import math
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

import msgspec
import torch
from torch import nn

from bench.estimate.fit import Measured, unique
from bench.planning.a100 import SHARE_PCT
from interlace.core.gpu_kinds import GPU_KINDS, GPU_RATES
from interlace.core.work import LayerWork, ModelWork
from interlace.formats.torch_work import count
from interlace.perf.estimate import Rates, rates_of, sms_of

TIMM: Final = {"rtx-3090": "infer-rtx3090.csv", "rtx-4090": "infer-rtx4090.csv"}
#: GPUs that no fit sees, from the same place: benchmark-infer-amp-nchw-pt291-cu130-*.csv under
#: results/ of pytorch-image-models (NCHW, PyTorch 2.9). TFLOPS, GB/s, MB of L2, and SMs are of the
#: RTX Blackwell white papers; a Max-Q board has 300 W and 0.878 of a full one's peak.
UNFITTED: Final = {
    "rtx-5090": ("infer-rtx5090-nchw.csv", (209.5, 1792.0, 96.0, 170.0)),
    "rtx-pro-6000-maxq": ("infer-rtxpro6000maxq-nchw.csv", (442.0, 1792.0, 128.0, 188.0)),
}
#: Of the models of other data, what timm calls them and the side of their images.
_CALLED: Final = {
    "resnet50": ("resnet50", 224),
    "resnet101": ("resnet101", 224),
    "resnet152": ("resnet152", 224),
    "vgg16": ("vgg16", 224),
    "vgg19": ("vgg19", 224),
    "mobilenet": ("mobilenetv1_100", 224),
    "mobilenetv2": ("mobilenetv2_100", 224),
    "densenet121": ("densenet121", 224),
    "densenet169": ("densenet169", 224),
    "densenet201": ("densenet201", 224),
    "inceptionv3": ("inception_v3", 224),
}
_BERT_TOKENS: Final = 128
#: SMs that MPS grants together: a share that is alone is rounded up to pairs (seen at 2 to 6 %).
_PAIR: Final = 2
#: NetML copies each image to the GPU before it runs them (onvm_netml.h: 3 x 224 x 224 floats); what
#: a PCIe 3.0 link of 16 lanes gives in practice.
_IMAGE_BYTES: Final = 3 * 224 * 224 * 4
_LINK_BYTES_S: Final = 12e9
#: Parts of an A100's DRAM by MIG slices (NVIDIA's user guide: eighths).
_MIG_DRAM: Final = {1: 0.125, 2: 0.25, 3: 0.5, 4: 0.5, 7: 1.0}


class WorkCache:
    """The work of models by name, kept in a file of one line each."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._known: dict[str, ModelWork] = {}
        if path.exists():
            for line in path.read_text().splitlines():
                row = json.loads(line)
                self._known[row["model"]] = msgspec.convert(row["work"], ModelWork)

    def of(self, name: str, make: Callable[[], ModelWork] | None) -> ModelWork | None:
        """The work of a model; counted once, and not at all without ``make``."""
        if name not in self._known and make is not None:
            try:
                work = make()
            except Exception as error:
                print(f"{name} is left out: {type(error).__name__}: {str(error)[:100]}")
                work = ModelWork((), (str(error),))
            self._known[name] = work
            with self._path.open("a") as file:
                row = {"model": name, "work": msgspec.to_builtins(work)}
                file.write(json.dumps(row) + "\n")
        found = self._known.get(name)
        return None if found is None or found.unread else found


def timm_work(name: str, side: int) -> ModelWork:
    """The work of a timm model for one image, without weights (pip install timm)."""
    import timm

    with torch.device("meta"):
        try:
            module = timm.create_model(name, img_size=side)
        except TypeError:
            module = timm.create_model(name)
    return _counted(module, torch.empty(1, 3, side, side, device="meta"))


def _counted(module: nn.Module, *inputs: torch.Tensor) -> ModelWork:
    module.eval()
    return count(lambda: module(*inputs), [*module.parameters(), *module.buffers()])


def _alexnet() -> ModelWork:
    """AlexNet as CNTK has it: AlexNet_ImageNet_Distributed.py among its examples."""
    with torch.device("meta"):
        sizes = [(3, 96, 11, 4, 0), (96, 192, 5, 1, 2), (192, 384, 3, 1, 1), (384, 384, 3, 1, 1),
                 (384, 256, 3, 1, 1)]  # fmt: skip
        layers: list[nn.Module] = []
        for place, (inside, out, side, stride, pad) in enumerate(sizes):
            layers += [nn.Conv2d(inside, out, side, stride, pad), nn.ReLU()]
            layers += [nn.LocalResponseNorm(5)] if place < 2 else []
            layers += [nn.MaxPool2d(3, 2)] if place in (0, 1, 4) else []
        for inside, out in ((9216, 4096), (4096, 4096), (4096, 1000)):
            layers += ([nn.Flatten()] if inside == 9216 else [nn.ReLU()]) + [nn.Linear(inside, out)]
        return _counted(nn.Sequential(*layers), torch.empty(1, 3, 227, 227))


def _bert() -> ModelWork:
    from transformers import BertConfig, BertModel

    with torch.device("meta"):
        module = BertModel(BertConfig())
        return _counted(module, torch.zeros(1, _BERT_TOKENS, dtype=torch.long))


def named_work(name: str) -> ModelWork:
    """The work of a model of the V100 or A100 data."""
    if name == "alexnet":
        return _alexnet()
    return _bert() if name == "bert" else timm_work(*_CALLED[name])


def fused(work: ModelWork) -> ModelWork:
    """The work as an inference engine runs it: what is element-wise runs inside products."""
    kept: list[LayerWork] = []
    products = False
    for one in work.layers:
        if not (products and one.kind in ("scale", "pass")):
            kept.append(one)
            products = one.k > 1 or one.kind in ("depthwise", "grouped")
    return ModelWork(tuple(kept), work.unread, fused=True)


def rates(kind: str, tflops: float, value_bytes: float) -> Rates:
    """Peak rates of a kind of GPU."""
    of, sms = GPU_RATES[kind], sms_of(GPU_KINDS[kind])
    return Rates(1e12 * tflops, 1e9 * of.dram_gb_s, 1e6 * of.l2_mb, float(sms), value_bytes)


def timm_batches(data: Path, kind: str, cache: WorkCache, count_new: bool) -> list[Measured]:
    """Large batches of timm's models on one kind of GPU, in half precision."""
    found = []
    if kind in TIMM:
        file_name, of = TIMM[kind], rates(kind, GPU_RATES[kind].fp16_tflops, 2)
    else:
        file_name, (tflops, gb_s, l2_mb, sms) = UNFITTED[kind]
        of = Rates(1e12 * tflops, 1e9 * gb_s, 1e6 * l2_mb, sms, 2.0)
    with (data / "timm" / file_name).open() as file:
        for row in csv.DictReader(file):
            name, side = row["model"], int(row["infer_img_size"])

            def make(name: str = name, side: int = side) -> ModelWork:
                return timm_work(name, side)

            work = cache.of(name, make if count_new else None)
            told = float(row["infer_gmacs"] or 0)
            if work is None or not told or abs(work.flops / 2e9 / told - 1) > 0.1 > 0.1 / told:
                continue  # another model than the one that was measured bore this name
            layers, times = unique(work)
            rows = float(row["infer_batch_size"])
            seconds = rows / float(row["infer_samples_per_sec"])
            found.append(Measured(name, layers, times, of, rows, 1.0, 1.0, seconds, 0))
    return found


def v100_batches(data: Path, cache: WorkCache) -> Iterator[tuple[str, int, Measured]]:
    """Batches by stack and model and share, in single precision; engines that fuse."""
    gpu = GPU_KINDS["v100"]
    with (data / "v100" / "latency.csv").open() as file:
        for row in csv.DictReader(file):
            name = row["model"].split("_")[0]
            work = cache.of(f"data:{name}", lambda name=name: named_work(name))  # type: ignore[misc]
            if work is None:
                continue
            work = fused(work)
            layers, times = unique(work)
            share = int(float(row["gpu_pct"]))
            seconds = float(row["latency_ms_median"]) / 1000
            rows = float(row["batch"])
            part = min(1.0, _PAIR * math.ceil(gpu.units * share / 100 / _PAIR) / gpu.units)
            copies_s = rows * _IMAGE_BYTES / _LINK_BYTES_S
            of = rates_of("v100", half=False, sms=sms_of(gpu), part=part)
            one = Measured(name, layers, times, of, rows, part, None, seconds, 0, copies_s)
            yield row["model"], share, one


def mig_batches(data: Path, cache: WorkCache) -> Iterator[tuple[str, int, Measured]]:
    """Batches of one process by model and slices; eager PyTorch, convolutions in TF32."""
    for path in sorted((data / "a100-mig" / "profiles").glob("*.csv")):
        name = path.stem
        work = cache.of(f"data:{name}", lambda name=name: named_work(name))  # type: ignore[misc]
        if work is None:
            continue
        layers, times = unique(work)
        known = GPU_RATES["a100-mig"]
        tflops = known.fp32_tflops if name == "bert" else known.tf32_tflops
        of = rates("a100-mig", tflops, 4)
        with path.open() as file:
            for row in csv.DictReader(file):
                each, slices = float(row["Throughput"]), int(row["Mig instance"])
                if row["Workload Number"] == "1" and each > 0:
                    rows = float(row["Batch size"])
                    yield name, SHARE_PCT[slices], Measured(
                        name, layers, times, of, rows, slices / 7, _MIG_DRAM[slices], rows / each,
                        len(work.layers))  # fmt: skip


def tail(data: Path) -> float:
    """The 99th percentile over the median, of the V100's measurements in the middle."""
    with (data / "v100" / "latency.csv").open() as file:
        ratios = sorted(float(row["p99_ms"]) / float(row["latency_ms_median"])
                        for row in csv.DictReader(file))  # fmt: skip
    return ratios[len(ratios) // 2]
