"""Which extra of the package brings a library that is not installed."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

#: By extra (pyproject.toml), the modules of its libraries.
_MODULES: Final[Mapping[str, frozenset[str]]] = MappingProxyType(
    {
        "serve": frozenset(
            {"hpack", "httptools", "onnxruntime", "safetensors", "torch", "transformers", "uvloop"}
        ),
        "cuda": frozenset({"cuda", "pynvml"}),
        "fleet": frozenset({"ray"}),
        "plots": frozenset({"matplotlib"}),
        "testing": frozenset({"hypothesis"}),
        "bench": frozenset({"grpc", "numba"}),
    }
)


def remedy(error: ModuleNotFoundError) -> str | None:
    """What to install, if what is missing belongs to an extra; None of any other module."""
    module = (error.name or "").partition(".")[0]
    for extra, modules in _MODULES.items():
        if module in modules:
            return f"{module} is not installed: pip install 'interlace[{extra}]'"
    return None
