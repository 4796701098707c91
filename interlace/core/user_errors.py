"""Errors that a user can fix: wrong input, or a library that is not installed."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final


class UserError(Exception):
    """A command cannot go on: what is wrong, and what to do about it, in one line."""

    def __init__(self, said: str) -> None:
        # Names come from files, which may hold anything.
        super().__init__("".join(c if c.isprintable() else repr(c)[1:-1] for c in said))


class InputError(UserError):
    """What was given cannot be used: an option, a file. The command ends with 2 instead of 1."""


#: By extra (pyproject.toml), the modules of its libraries.
_MODULES: Final[Mapping[str, frozenset[str]]] = MappingProxyType(
    {
        "serve": frozenset(
            {"hpack", "httptools", "onnxruntime", "safetensors", "torch", "transformers", "uvloop"}
        ),
        "cuda": frozenset({"cuda", "pynvml"}),
        "fleet": frozenset({"ray"}),
        "otel": frozenset({"opentelemetry"}),
        "s3": frozenset({"s3fs", "fsspec"}),
        "gs": frozenset({"gcsfs"}),
        "az": frozenset({"adlfs"}),
        "hf": frozenset({"huggingface_hub"}),
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
