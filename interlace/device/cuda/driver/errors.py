"""Errors of driver calls: which call, what it returned, what to do."""

from __future__ import annotations

from typing import Final

from interlace.device.process.error_text import ReadableError

#: After these the context is lost: every later call fails the same way until the process ends.
_STICKY: Final = frozenset(
    {
        "CUDA_ERROR_ILLEGAL_ADDRESS",
        "CUDA_ERROR_LAUNCH_TIMEOUT",
        "CUDA_ERROR_ASSERT",
        "CUDA_ERROR_HARDWARE_STACK_ERROR",
        "CUDA_ERROR_ILLEGAL_INSTRUCTION",
        "CUDA_ERROR_MISALIGNED_ADDRESS",
        "CUDA_ERROR_INVALID_ADDRESS_SPACE",
        "CUDA_ERROR_INVALID_PC",
        "CUDA_ERROR_LAUNCH_FAILED",
        "CUDA_ERROR_ECC_UNCORRECTABLE",
        "CUDA_ERROR_CONTAINED",
        "CUDA_ERROR_MPS_CLIENT_TERMINATED",
        "CUDA_ERROR_MPS_SERVER_NOT_READY",
        "CUDA_ERROR_UNKNOWN",
    }
)

_ADVICE: Final = {
    "CUDA_ERROR_NO_DEVICE": "is the GPU visible here (nvidia-smi, CUDA_VISIBLE_DEVICES)?",
    "CUDA_ERROR_OUT_OF_MEMORY": "load fewer or smaller models on this GPU",
    "CUDA_ERROR_NOT_SUPPORTED": "the driver or the GPU does not have this",
    "CUDA_ERROR_INVALID_RESOURCE_CONFIGURATION": "the SMs cannot be grouped that way",
}


class CudaError(ReadableError):
    """A driver call failed.

    ``name`` is the driver's name of the error. ``sticky``: the process must be started anew.
    """

    def __init__(self, call: str, name: str, detail: str = "") -> None:
        advice = _ADVICE.get(name, "")
        words = ": ".join(part for part in (f"{call} failed", name, detail, advice) if part)
        super().__init__(words)
        self.call = call
        self.name = name

    @property
    def sticky(self) -> bool:
        return self.name in _STICKY
