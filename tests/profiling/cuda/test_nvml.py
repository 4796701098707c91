"""NVML as it is spoken to, on a module that answers like ``pynvml``."""

import inspect
from types import SimpleNamespace
from typing import Any

import pytest

from interlace.profiling.cuda.nvml import Nvml, NvmlError


class FakeError(Exception):
    """``pynvml.NVMLError``."""


class FakePynvml:
    """One GPU that has used half of its DRAM's bandwidth."""

    NVMLError = FakeError
    NVML_GPM_METRICS_GET_VERSION = 1

    def __init__(self, refuses: str = "", absent: tuple[int, ...] = ()) -> None:
        self.refuses, self.absent = refuses, absent
        self.open = 0
        self.samples: set[int] = set()

    def _check(self, call: str) -> None:
        if call == self.refuses:
            raise FakeError("Not Supported")

    def nvmlInit(self) -> None:
        self._check("nvmlInit")
        self.open += 1

    def nvmlShutdown(self) -> None:
        self.open -= 1

    def nvmlDeviceGetHandleByUUID(self, uuid: str) -> str:
        self._check("nvmlDeviceGetHandleByUUID")
        return f"handle of {uuid}"

    def nvmlGpmQueryDeviceSupport(self, device: str) -> Any:
        self._check("nvmlGpmQueryDeviceSupport")
        return SimpleNamespace(isSupportedDevice=1)

    def nvmlGpmSampleAlloc(self) -> int:
        self.samples.add(len(self.samples) + 1)
        return len(self.samples)

    def nvmlGpmSampleGet(self, device: str, gpmSample: int) -> None:
        self._check("nvmlGpmSampleGet")

    def nvmlGpmSampleFree(self, gpmSample: int) -> None:
        self.samples.remove(gpmSample)

    def c_nvmlGpmMetricsGet_t(self) -> Any:
        metrics = [SimpleNamespace(metricId=0, nvmlReturn=0, value=0.0) for _ in range(4)]
        return SimpleNamespace(metrics=metrics)

    def nvmlGpmMetricsGet(self, metricsGet: Any) -> None:
        self._check("nvmlGpmMetricsGet")
        assert metricsGet.version == 1
        assert metricsGet.sample1 != metricsGet.sample2
        for metric in metricsGet.metrics[: metricsGet.numMetrics]:
            metric.value = {10: 50.0}[metric.metricId]
            metric.nvmlReturn = 3 if metric.metricId in self.absent else 0


@pytest.mark.parametrize(("absent", "wanted"), [((), 0.5), ((10,), None)])
def test_a_counter_that_is_not_there_is_not_zero(
    absent: tuple[int, ...], wanted: float | None
) -> None:
    module = FakePynvml(absent=absent)
    nvml = Nvml("GPU-1", module)
    assert nvml.counts
    assert nvml.dram_use(nvml.sample(), nvml.sample()) == wanted
    assert not module.samples
    nvml.close()
    assert module.open == 0


@pytest.mark.parametrize("call", ["nvmlInit", "nvmlDeviceGetHandleByUUID"])
def test_no_gpu_is_an_error_and_nothing_stays_open(call: str) -> None:
    module = FakePynvml(call)
    with pytest.raises(NvmlError, match="Not Supported"):
        Nvml("GPU-1", module)
    assert module.open == 0


def test_what_is_refused_is_said_and_no_sample_is_left() -> None:
    module = FakePynvml("nvmlGpmSampleGet")
    with pytest.raises(NvmlError, match="no GPM sample"):
        Nvml("GPU-1", module).sample()
    assert not module.samples
    module = FakePynvml("nvmlGpmMetricsGet")
    nvml = Nvml("GPU-1", module)
    with pytest.raises(NvmlError, match="no GPM metrics"):
        nvml.dram_use(nvml.sample(), nvml.sample())
    assert not module.samples
    assert not Nvml("GPU-1", FakePynvml("nvmlGpmQueryDeviceSupport")).counts


def test_the_installed_module_has_every_call_with_these_parameters() -> None:
    pynvml = pytest.importorskip("pynvml")
    for name, fake in vars(FakePynvml).items():
        if name.startswith("nvml"):
            wanted = [p for p in inspect.signature(fake).parameters if p != "self"]
            assert list(inspect.signature(getattr(pynvml, name)).parameters) == wanted, name
    assert pynvml.NVML_GPM_METRIC_DRAM_BW_UTIL == 10
    asked = pynvml.c_nvmlGpmMetricsGet_t()
    asked.numMetrics, asked.metrics[1].metricId = 2, 10
    assert (asked.metrics[1].nvmlReturn, asked.metrics[1].value) == (0, 0.0)
