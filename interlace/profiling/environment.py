"""What a profile was measured with: machine and library versions, for people and for the file."""

from __future__ import annotations

import platform
from importlib.metadata import PackageNotFoundError, version
from typing import Final

from interlace.formats.machine import processor_name

_LIBRARIES: Final = ("numpy", "torch", "onnxruntime", "transformers", "safetensors")


def processor() -> str:
    """The processor's name, or its architecture where the kernel tells no name."""
    return processor_name() or platform.processor() or platform.machine()


def libraries() -> dict[str, str]:
    """Installed versions of what executes models; nothing is imported."""
    found = {"python": platform.python_version()}
    for name in _LIBRARIES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found
