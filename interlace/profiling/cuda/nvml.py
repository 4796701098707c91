"""NVML as far as measuring needs it: the DRAM counter of Hopper's GPM."""

from __future__ import annotations

from contextlib import suppress
from typing import Any, Final

#: Metric of ``nvmlGpmMetricsGet``, in percent: nvml.h, nvmlGpmMetricId_t.
_DRAM_BW_UTIL: Final = 10


class NvmlError(Exception):
    """NVML is not there, or does not say what was asked."""


class Nvml:
    """One GPU through ``pynvml``, or a module that does the same; it initialises no CUDA."""

    def __init__(self, uuid: str, pynvml: Any = None) -> None:
        """Open NVML.

        Raises:
            NvmlError: it is not installed, does not answer, or knows no such GPU.
        """
        self._nvml = pynvml or _module()
        try:
            self._nvml.nvmlInit()
        except self._nvml.NVMLError as error:
            raise NvmlError(f"NVML does not answer: {error}") from error
        try:
            self._gpu = self._nvml.nvmlDeviceGetHandleByUUID(uuid)
        except self._nvml.NVMLError as error:
            self.close()
            raise NvmlError(f"NVML knows no GPU {uuid}: {error}") from error

    @property
    def counts(self) -> bool:
        """Whether there are utilisation counters at all (Hopper and later, not inside MIG)."""
        try:
            return bool(self._nvml.nvmlGpmQueryDeviceSupport(self._gpu).isSupportedDevice)
        except self._nvml.NVMLError:
            return False

    def sample(self) -> Any:
        """Take a sample of the counters, to be given to ``dram_use`` once.

        Raises:
            NvmlError: it is refused.
        """
        try:
            made = self._nvml.nvmlGpmSampleAlloc()
        except self._nvml.NVMLError as error:
            raise NvmlError(f"no GPM sample: {error}") from error
        try:
            self._nvml.nvmlGpmSampleGet(self._gpu, made)
        except self._nvml.NVMLError as error:
            self._nvml.nvmlGpmSampleFree(made)
            raise NvmlError(f"no GPM sample: {error}") from error
        return made

    def dram_use(self, first: Any, second: Any) -> float | None:
        """Return DRAM utilisation, 0..1, between two samples at least 100 ms apart, and free both.

        ``None`` where the GPU does not count it. GPM has no counter of L2's bandwidth on Hopper:
        that takes readers beside the model.
        """
        asked = self._nvml.c_nvmlGpmMetricsGet_t()
        asked.version = self._nvml.NVML_GPM_METRICS_GET_VERSION
        asked.numMetrics = 1
        asked.sample1, asked.sample2 = first, second
        asked.metrics[0].metricId = _DRAM_BW_UTIL
        try:
            self._nvml.nvmlGpmMetricsGet(asked)
        except self._nvml.NVMLError as error:
            raise NvmlError(f"no GPM metrics: {error}") from error
        finally:
            self._nvml.nvmlGpmSampleFree(first)
            self._nvml.nvmlGpmSampleFree(second)
        metric = asked.metrics[0]
        if int(metric.nvmlReturn) != 0:
            return None
        return min(1.0, max(0.0, float(metric.value) / 100.0))

    def close(self) -> None:
        with suppress(self._nvml.NVMLError):
            self._nvml.nvmlShutdown()


def _module() -> Any:
    try:
        import pynvml
    except ImportError as error:
        raise NvmlError("the package nvidia-ml-py is not installed") from error
    return pynvml
