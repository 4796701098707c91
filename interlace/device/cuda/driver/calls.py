"""Driver calls in the right context, their statuses as exceptions, and the handles they return."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final

from cuda.bindings import driver as cu

from interlace.device.cuda.driver.api import CudaError


def call(function: Callable[..., tuple[Any, ...]], *arguments: object) -> Any:
    """What a binding returns behind its status: nothing, one value, or a tuple of them.

    Raises:
        CudaError: the status is not success, or the driver is not installed.
    """
    name = getattr(function, "__name__", "CUDA")
    try:
        status, *values = function(*arguments)
    except RuntimeError as error:  # the bindings' loader: no libcuda, or not this function in it
        why = str(error).strip().splitlines()[0]
        raise CudaError(name, "CUDA_ERROR_NO_DEVICE", why) from error
    if status != cu.CUresult.CUDA_SUCCESS:
        raise CudaError(name, _name(status), _detail(status))
    return values[0] if len(values) == 1 else tuple(values) or None


def _name(status: Any) -> str:
    return str(getattr(status, "name", status))


def _detail(status: Any) -> str:
    _, text = cu.cuGetErrorString(status)
    return text.decode(errors="replace") if text else ""


class PrimaryContext:
    """The primary context of one GPU: each thread that calls has it current, or entered another."""

    def __init__(self, ordinal: int) -> None:
        call(cu.cuInit, 0)
        self.device = call(cu.cuDeviceGet, ordinal)
        self._context = call(cu.cuDevicePrimaryCtxRetain, self.device)
        self._threads = threading.local()

    def call(self, function: Callable[..., tuple[Any, ...]], *arguments: object) -> Any:
        """``call`` with the context current on this thread."""
        self.enter_once()
        return call(function, *arguments)

    def enter_once(self) -> None:
        """Have a context current on this thread, for calls past ``call``."""
        # Frameworks use the same primary context, so nobody else makes another one current.
        if not getattr(self._threads, "current", False):
            self.enter(None)

    def enter(self, context: Any) -> None:
        """Make a context current on this thread from now on; ``None``: the primary one."""
        call(cu.cuCtxSetCurrent, self._context if context is None else context)
        self._threads.current = True

    @contextmanager
    def pushed(self) -> Iterator[Any]:
        """The context, current on this thread meanwhile; then that which was before."""
        call(cu.cuCtxPushCurrent, self._context)
        self._threads.current = True
        try:
            yield self._context
        finally:
            self._threads.current = False
            call(cu.cuCtxPopCurrent)

    def of(self, green: int) -> Any:
        """What stands for a green context where a context is asked for."""
        return self.call(cu.cuCtxFromGreenCtx, green)

    def release(self) -> None:
        """Let go of the context."""
        call(cu.cuDevicePrimaryCtxRelease, self.device)


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
        """Load a kernel, in the primary context; returns it."""
        self._functions[kernel, 0] = int(self._context.call(cu.cuKernelGetFunction, kernel))
        return kernel

    def of(self, kernel: int, green: int | None) -> Iterator[int]:
        """Handles to try for a stream of that context, as long as ``refused`` says so."""
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
