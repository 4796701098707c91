"""What a profile was measured with: machine and library versions, for people and for the file."""

from __future__ import annotations

import platform
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Final

_LIBRARIES: Final = ("numpy", "torch", "onnxruntime", "transformers", "safetensors")
_CPUINFO: Final = Path("/proc/cpuinfo")


def processor() -> str:
    """The processor's name, as the kernel tells it."""
    try:
        lines = _CPUINFO.read_text().splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    for line in lines:
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()


def libraries() -> dict[str, str]:
    """Installed versions of what executes models; nothing is imported."""
    found = {"python": platform.python_version()}
    for name in _LIBRARIES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found
