"""Which counters of pressure can be read while a known kernel runs."""

from __future__ import annotations

import csv
import io
import shutil
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator
from functools import partial
from typing import Any, Final

from bench.gpu.bench import Bench
from bench.gpu.lanes import allocated, lanes
from bench.gpu.rows import Row, attempt, judged, seen, skipped

#: NVML's names of GPM metrics, by number (nvml.h, nvmlGpmMetricId_t).
_METRICS: Final = {
    2: "SM utilisation",
    3: "SM occupancy",
    5: "tensor cores",
    10: "device memory bandwidth",
    20: "PCIe sent",
    21: "PCIe received",
    **{number: f"host memory cache ({number})" for number in range(160, 167)},
}
_WINDOW_S: Final = 0.15
_NCU_METRICS: Final = (
    "lts__t_sectors.avg.pct_of_peak_sustained_elapsed,"
    "dram__throughput.avg.pct_of_peak_sustained_elapsed,gpu__time_duration.sum"
)
_NCU_PROGRAM: Final = """
import torch
a = torch.randn(4096, 4096, device="cuda", dtype=torch.float16)
torch.mm(a, a)
torch.cuda.synchronize()
"""
_NCU_S: Final = 11.0


def rows(bench: Bench) -> Iterator[Row]:
    """NVML's GPM metrics during a DRAM streamer and during arithmetic; ``ncu`` on one product."""
    if bench.dry:
        yield skipped("GPM", "needs a GPU")
        yield skipped("ncu", "needs a GPU")
        return
    yield from attempt("GPM", lambda: _gpm(bench))
    yield from attempt("ncu", _ncu)


def _gpm(bench: Bench) -> Iterable[Row]:
    import pynvml

    pynvml.nvmlInit()
    device = pynvml.nvmlDeviceGetHandleByIndex(0)
    able = bool(pynvml.nvmlGpmQueryDeviceSupport(device).isSupportedDevice)
    yield judged("GPM is supported", "yes", "yes" if able else "no", able)
    if not able:
        return
    with bench.backend() as backend, lanes(backend.driver) as cut:
        driver, kernels, lane = backend.driver, backend.kernels, cut.plain()
        nbytes = 4 << 30
        with allocated(driver, nbytes) as source, allocated(driver, 64) as counter:
            grid, stay_ns = (4 * lane.sms, 1, 1), int(2.5 * _WINDOW_S * 1e9)
            loads = {
                "reading device memory": (
                    kernels.dram_stream,
                    (source, nbytes, stay_ns, counter),
                ),
                "arithmetic": (kernels.spin, (stay_ns, counter)),
            }
            for name, (kernel, arguments) in loads.items():
                launch = partial(driver.launch, kernel, grid, (512, 1, 1), lane.stream, arguments)
                launch()
                yield from _sampled(pynvml, device, name)
                driver.synchronize(lane.stream)


def _sampled(nvml: Any, device: Any, load: str) -> Iterable[Row]:
    samples = [nvml.nvmlGpmSampleAlloc() for _ in range(2)]
    time.sleep(_WINDOW_S / 2)
    nvml.nvmlGpmSampleGet(device, samples[0])
    time.sleep(_WINDOW_S)
    nvml.nvmlGpmSampleGet(device, samples[1])
    for number, name in _METRICS.items():
        asked = nvml.c_nvmlGpmMetricsGet_t()
        asked.version = nvml.NVML_GPM_METRICS_GET_VERSION
        asked.numMetrics = 1
        asked.sample1, asked.sample2 = samples
        asked.metrics[0].metricId = number
        nvml.nvmlGpmMetricsGet(asked)
        one = asked.metrics[0]
        if one.nvmlReturn:
            words = nvml.nvmlErrorString(one.nvmlReturn)
            yield skipped(f"{name} while {load}", f"not given: {words}")
        else:
            yield seen(f"{name} while {load}", f"{one.value:.2f}", value=one.value, metric=number)
    for sample in samples:
        nvml.nvmlGpmSampleFree(sample)


def _ncu() -> Iterable[Row]:
    if shutil.which("ncu") is None:
        yield skipped("ncu", "not on the path")
        return
    said = subprocess.run(
        ["ncu", "--csv", "--clock-control", "none", "--metrics", _NCU_METRICS,
         sys.executable, "-c", _NCU_PROGRAM],
        capture_output=True, text=True, timeout=_NCU_S, check=False,
    )  # fmt: skip
    lines = [line for line in said.stdout.splitlines() if line.startswith('"')]
    found = list(csv.DictReader(io.StringIO("\n".join(lines))))
    if not found:
        yield judged("ncu", "metrics of a product", (said.stdout + said.stderr)[-300:], False)
    for one in found[-3:]:
        value = f"{one.get('Metric Value')} {one.get('Metric Unit')}"
        yield seen(f"ncu: {one.get('Metric Name')}", value, kernel=one.get("Kernel Name"))
