"""NVML of the measured GPU: how it is set."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

from bench.gpu.rows import Row, seen, skipped

_PERSISTENCE: Final = "persistence mode"


@contextmanager
def held(dry: bool, pynvml: Any = None) -> Iterator[Row]:
    """NVML open in this process for a while, and a row that says what that is good for.

    Without persistence mode a GPU is switched off when its last user goes, and takes one to three
    seconds for the next: each part would pay them. ``pynvml`` is a module that does the same.
    """
    if dry:
        yield skipped(_PERSISTENCE, "needs a GPU")
        return
    try:
        nvml = pynvml or _module()
        nvml.nvmlInit()
    except Exception as error:
        yield skipped(_PERSISTENCE, f"NVML cannot be kept open: {error}")
        return
    try:
        yield _persistence(nvml)
    finally:
        nvml.nvmlShutdown()


def _module() -> Any:
    import pynvml

    return pynvml


def _persistence(nvml: Any) -> Row:
    try:
        on = bool(nvml.nvmlDeviceGetPersistenceMode(nvml.nvmlDeviceGetHandleByIndex(0)))
    except nvml.NVMLError as error:
        return skipped(_PERSISTENCE, str(error))
    words = "on" if on else "off: this run holds NVML open, so that the GPU stays initialised"
    return seen(_PERSISTENCE, words, on=on)
