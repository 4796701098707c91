"""One driver call in the right context, its status as an exception. Imports the CUDA bindings."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from cuda.bindings import driver as cu

from interlace.device.cuda.driver.errors import CudaError


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
        """``call`` with the context current on this thread.

        Raises:
            CudaError: the call failed.
        """
        self.enter_once()
        return call(function, *arguments)

    def enter_once(self) -> None:
        """Have a context current on this thread, for calls past ``call``.

        Raises:
            CudaError: the GPU failed.
        """
        # Frameworks use the same primary context, so nobody else makes another one current.
        if not getattr(self._threads, "current", False):
            self.enter(None)

    def enter(self, context: Any) -> None:
        """Make a context current on this thread from now on; ``None``: the primary one.

        Raises:
            CudaError: there is no such context.
        """
        call(cu.cuCtxSetCurrent, self._context if context is None else context)
        self._threads.current = True

    @contextmanager
    def pushed(self) -> Iterator[Any]:
        """The context, current on this thread meanwhile; then that which was before.

        Raises:
            CudaError: the GPU failed.
        """
        call(cu.cuCtxPushCurrent, self._context)
        self._threads.current = True
        try:
            yield self._context
        finally:
            self._threads.current = False
            call(cu.cuCtxPopCurrent)

    def of(self, green: int) -> Any:
        """What stands for a green context where a context is asked for.

        Raises:
            CudaError: there is no such green context.
        """
        return self.call(cu.cuCtxFromGreenCtx, green)

    def release(self) -> None:
        """Let go of the context."""
        call(cu.cuDevicePrimaryCtxRelease, self.device)
