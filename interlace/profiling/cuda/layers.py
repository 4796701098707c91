"""Layer by layer: time to copy the weights, to run, and to run with the weights on the host.

What DeepPlan's planner needs (Jeong et al., EuroSys 2023, section 4.3.1).
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final

import torch

from interlace.core.profile import LayerProfile
from interlace.device.cuda.backend.base import CudaBackend
from interlace.device.cuda.backend.tensors import tensor_at
from interlace.device.cuda.driver.api import MappedBlock
from interlace.device.cuda.lanes import Lane, between_events
from interlace.device.cuda.models.cold_layout import ModuleCall, is_table, module_calls

GpuWork = Callable[[], object]


class GraphTimer:
    """Time on the GPU, without what the CPU takes to launch.

    ``repeats`` executions in a graph, launched ``takes`` times; the median launch counts.

    Cold executions each follow a write of ``flush_bytes``, more than the L2 holds, whose own time
    is taken off.
    """

    def __init__(
        self,
        backend: CudaBackend,
        lane: Lane,
        repeats: int = 10,
        takes: int = 5,
        flush_bytes: int = 128 << 20,
    ) -> None:
        self.backend = backend
        self.lane = lane
        self.repeats = repeats
        self.takes = takes
        with backend.torch_stream(lane.stream):
            self._scratch = torch.zeros(flush_bytes // 4, device=backend.torch_device)
        self._flush_ms: float | None = None

    def warm_ms(self, body: GpuWork) -> float:
        """One execution right after the same."""
        return self._graph_ms(body) / self.repeats

    def cold_ms(self, body: GpuWork) -> float:
        """One execution that finds nothing of its own in the L2."""
        if self._flush_ms is None:
            self._flush_ms = self._graph_ms(self._flush)

        def both() -> None:
            self._flush()
            body()

        return max(0.0, self._graph_ms(both) - self._flush_ms) / self.repeats

    def copy_ms(self, target: int, source: int, nbytes: int) -> float:
        """One copy by a copy engine."""
        driver = self.backend.driver

        def copies() -> None:
            for _ in range(self.repeats):
                driver.copy(target, source, nbytes, self.lane.stream)

        return self._median_ms(copies) / self.repeats

    def _graph_ms(self, body: GpuWork) -> float:
        stream = self.lane.stream

        def repeated() -> None:
            for _ in range(self.repeats):
                body()

        with self.backend.torch_stream(stream):
            body()  # libraries make their handles and choose their kernels outside of captures
        self.backend.driver.synchronize(stream)
        captured = self.backend.capturer.capture(stream, None, repeated)
        try:
            return self._median_ms(
                lambda: self.backend.driver.launch_graph(captured.executable, stream)
            )
        finally:
            captured.close()

    def _median_ms(self, launch: GpuWork) -> float:
        with between_events(self.backend.driver, self.lane.stream) as taken_ms:
            taken_ms(launch)  # the first one uploads
            return statistics.median(taken_ms(launch) for _ in range(self.takes))

    def _flush(self) -> None:
        self._scratch.fill_(1.0)


#: Time outside of all modules: functions such as additions, and attention itself.
BETWEEN: Final = "(between modules)"
_ALIGN_BYTES: Final = 256


def measure_layers(
    backend: CudaBackend, lane: Lane, timer: GraphTimer, run: Callable[[], object]
) -> tuple[LayerProfile, ...]:
    """The layers of the model that ``run`` executes on the lane, for the batch it executes.

    Steps without weights have time alone. What the whole takes beyond its steps is a last entry,
    so that run times add up to that of the model.

    Raises:
        CudaError: the GPU failed, or the largest layer cannot be pinned on the host.
        MemoryError: the largest layer has no room on the GPU a second time.
    """
    with torch.inference_mode():
        parts = module_calls(run)
        whole_ms = timer.warm_ms(run)
        with _Bench(backend, lane, timer, parts) as bench:
            found = [bench.layer(part) for part in parts]
    rest_ms = max(0.0, whole_ms - sum(layer.run_ms for layer in found))
    return (*found, LayerProfile(BETWEEN, 0, 0.0, rest_ms, rest_ms)) if found else ()


class _Bench:
    """Room for one layer's weights on the host and once more on the GPU."""

    def __init__(
        self, backend: CudaBackend, lane: Lane, timer: GraphTimer, parts: Sequence[ModuleCall]
    ) -> None:
        self._backend = backend
        self._lane = lane
        self._timer = timer
        self._parts = parts
        self._room = max([_ALIGN_BYTES, *(_padded(part.tensors) for part in parts)])
        self._copies: dict[int, float] = {}

    def __enter__(self) -> _Bench:
        driver = self._backend.driver
        self._host: MappedBlock = driver.allocate_mapped(self._room)
        try:
            self._device = driver.allocate(self._room)
        except BaseException:
            driver.free_mapped(self._host)
            raise
        return self

    def __exit__(self, *error: object) -> None:
        self._backend.driver.free(self._device)
        self._backend.driver.free_mapped(self._host)

    def layer(self, part: ModuleCall) -> LayerProfile:
        nbytes = sum(tensor.nbytes for tensor in part.tensors)
        copy_ms, here_ms = self._copy_ms(nbytes), self._timer.cold_ms(part.run)
        run_ms = here_ms if part.whole else 0.0  # the parts' times are their own
        if is_table(part, self._parts):
            with self._on_host(part.tensors):
                host_ms = max(run_ms, self._timer.cold_ms(part.run))
        else:  # only rows of tables are read in place: each execution copies the rest
            host_ms = run_ms + copy_ms
        kind = type(part.module).__name__
        return LayerProfile(part.name, nbytes, copy_ms, run_ms, host_ms, kind)

    def _copy_ms(self, nbytes: int) -> float:
        if nbytes and nbytes not in self._copies:
            took_ms = self._timer.copy_ms(self._device, self._host.host, nbytes)
            self._copies[nbytes] = took_ms
        return self._copies.get(nbytes, 0.0)

    @contextmanager
    def _on_host(self, tensors: Sequence[torch.Tensor]) -> Iterator[None]:
        """The layer's weights in mapped host memory meanwhile, read in place by its kernels."""
        driver, stream = self._backend.driver, self._lane.stream
        kept: list[tuple[torch.Tensor, torch.Tensor]] = []
        offset = 0
        try:
            for tensor in tensors:
                driver.copy(self._host.host + offset, tensor.data_ptr(), tensor.nbytes, stream)
                kept.append((tensor, tensor.data))
                _point(tensor, self._host.device + offset, self._backend.torch_device)
                offset += _aligned(tensor.nbytes)
            driver.synchronize(stream)
            yield
        finally:
            for tensor, data in kept:
                tensor.data = data


def _point(tensor: Any, address: int, device: str) -> None:
    tensor.data = tensor_at(
        address, tuple(tensor.shape), tensor.dtype, device, tuple(tensor.stride())
    )


def _padded(tensors: Sequence[torch.Tensor]) -> int:
    return sum(_aligned(tensor.nbytes) for tensor in tensors)


def _aligned(nbytes: int) -> int:
    return -(-nbytes // _ALIGN_BYTES) * _ALIGN_BYTES
