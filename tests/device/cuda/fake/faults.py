"""Failures on demand, and the state of a GPU that has failed."""

from collections import Counter
from dataclasses import dataclass

from interlace.device.cuda.driver.api import CudaError, Driver


class Misuse(AssertionError):
    """A wrong use of the driver that CUDA itself might not report."""


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
        if call != "run" and not hasattr(Driver, call):
            raise ValueError(f"no call {call} of the driver")
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
            raise CudaError(call, self.broken.name, str(self.broken))
        for planned in self._planned.get(call, []):
            if planned.skip:
                planned.skip -= 1
            elif planned.times:
                planned.times -= 1
                error = CudaError(call, planned.name, "planned by the test")
                if error.sticky:
                    self.broken = error
                raise error

    def failed(self, error: Exception) -> None:
        """Work on the GPU failed: nothing says so until the next call."""
        if not isinstance(error, CudaError):
            self.misuses.append(error)
            error = CudaError("kernel", "CUDA_ERROR_LAUNCH_FAILED", repr(error))
        self.broken = self.broken or error
