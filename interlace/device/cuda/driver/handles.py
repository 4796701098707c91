"""With which handle a kernel is launched: the first one that the driver takes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from cuda.bindings import driver as cu

from interlace.device.cuda.driver.calls import PrimaryContext
from interlace.device.cuda.driver.errors import CudaError

#: The kernel itself, which runs in the context of the stream; its function in the primary context;
#: its function in the stream's own context.
_KERNEL, _FUNCTION, _GREEN_FUNCTION = range(3)
#: What a capture that is void says to every launch: no handle is at fault.
_CAPTURE: Final = "STREAM_CAPTURE"


class LaunchHandles:
    """Handles of our kernels by context.

    ``CUkernel`` is documented to go to any stream; should a driver refuse it on the stream of a
    green context, a ``CUfunction`` takes its place from then on.
    """

    def __init__(self, context: PrimaryContext) -> None:
        self._context = context
        self._functions: dict[tuple[int, int], int] = {}  # by kernel and green context, 0: primary
        self._ways: dict[int | None, int] = {}

    def add(self, kernel: int) -> int:
        """Load a kernel, in the primary context; returns it.

        Raises:
            CudaError: it does not load.
        """
        self._functions[kernel, 0] = int(self._context.call(cu.cuKernelGetFunction, kernel))
        return kernel

    def of(self, kernel: int, green: int | None) -> Iterator[int]:
        """Handles to try for a stream of that context, as long as ``refused`` says so.

        Raises:
            CudaError: there is no function for that context.
        """
        while True:
            way = self._ways.get(green, _KERNEL)
            if way == _KERNEL:
                yield kernel
            elif way == _FUNCTION:
                yield self._functions[kernel, 0]
            else:
                yield self._in(kernel, green or 0)

    def refused(self, green: int | None, error: CudaError) -> bool:
        """A launch failed with the last handle: whether another is worth a try."""
        if error.sticky or error.name == "CUDA_ERROR_OUT_OF_MEMORY" or _CAPTURE in error.name:
            return False
        last = _FUNCTION if green is None else _GREEN_FUNCTION
        way = self._ways.get(green, _KERNEL)
        self._ways[green] = way + 1 if way < last else _KERNEL
        return way < last

    def forget(self, green: int) -> None:
        """That context is about to end; the next one may have its handle."""
        self._ways.pop(green, None)
        for key in [one for one in self._functions if one[1] == green]:
            del self._functions[key]

    def _in(self, kernel: int, green: int) -> int:
        found = self._functions.get((kernel, green))
        if found is None:
            call = self._context.call
            call(cu.cuCtxPushCurrent, self._context.of(green))
            try:
                found = int(call(cu.cuKernelGetFunction, kernel))
            finally:
                call(cu.cuCtxPopCurrent)
            self._functions[kernel, green] = found
        return found
