"""Failures on demand, and the state of a GPU that has failed."""

from collections import Counter
from dataclasses import dataclass
from typing import Final

from interlace.device.cuda.driver.api import CudaError


class Misuse(AssertionError):
    """A wrong use of the driver that CUDA itself might not report."""


#: What the driver calls it.
CALLS: Final = {
    "memory": "cuMemGetInfo",
    "close": "cuDevicePrimaryCtxRelease",
    "allocate": "cuMemAlloc",
    "free": "cuMemFree",
    "allocate_mapped": "cuMemHostAlloc",
    "free_mapped": "cuMemFreeHost",
    "register": "cuMemHostRegister",
    "unregister": "cuMemHostUnregister",
    "copy": "cuMemcpyAsync",
    "ipc_handle": "cuIpcGetMemHandle",
    "ipc_open": "cuIpcOpenMemHandle",
    "ipc_close": "cuIpcCloseMemHandle",
    "split": "cuDevSmResourceSplitByCount",
    "green": "cuGreenCtxCreate",
    "destroy_green": "cuGreenCtxDestroy",
    "enter": "cuCtxSetCurrent",
    "stream": "cuStreamCreateWithPriority",
    "destroy_stream": "cuStreamDestroy",
    "synchronize": "cuStreamSynchronize",
    "idle": "cuStreamQuery",
    "event": "cuEventCreate",
    "destroy_event": "cuEventDestroy",
    "record": "cuEventRecord",
    "wait": "cuStreamWaitEvent",
    "ended": "cuEventQuery",
    "elapsed_ms": "cuEventElapsedTime",
    "load_kernels": "cuModuleLoadData",
    "kernel": "cuModuleGetFunction",
    "unload_kernels": "cuModuleUnload",
    "launch": "cuLaunchKernel",
    "launch_graph": "cuGraphLaunch",
    "run": "kernel",
}


@dataclass
class _Planned:
    name: str
    skip: int
    times: int


class Faults:
    """Which call fails next and how. After a sticky error every call fails, as in CUDA."""

    def __init__(self) -> None:
        self.broken: CudaError | None = None
        self.closed = False
        self.misuses: list[Exception] = []
        self.calls: Counter[str] = Counter()
        self._planned: dict[str, list[_Planned]] = {}

    def plan(self, call: str, name: str, skip: int = 0, times: int = 1) -> None:
        """``call`` is a method of ``Driver``, or "run": the next work that the GPU executes."""
        if call not in CALLS:
            raise ValueError(f"no call {call}: {', '.join(CALLS)}")
        self._planned.setdefault(call, []).append(_Planned(name, skip, times))

    def enter(self, call: str) -> None:
        """At the begin of each call.

        Raises:
            CudaError: it was planned, or the GPU has failed before.
        """
        self.calls[call] += 1
        if self.closed:
            raise Misuse(f"{call} after close")
        if self.broken is not None:
            raise CudaError(CALLS[call], self.broken.name, str(self.broken))
        for planned in self._planned.get(call, []):
            if planned.skip:
                planned.skip -= 1
            elif planned.times:
                planned.times -= 1
                error = CudaError(CALLS[call], planned.name, "planned by the test")
                if error.sticky:
                    self.broken = error
                raise error

    def failed(self, error: Exception) -> None:
        """Work on the GPU failed: nothing says so until the next call."""
        if not isinstance(error, CudaError):
            self.misuses.append(error)
            error = CudaError("kernel", "CUDA_ERROR_LAUNCH_FAILED", repr(error))
        self.broken = self.broken or error
