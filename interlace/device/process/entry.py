"""Functions named in the first frame of a process, as ``module:function``."""

from __future__ import annotations

from importlib import import_module
from typing import Any


def function_named(path: str) -> Any:
    """The function that ``module:function`` names; its module is imported."""
    module, _, name = path.partition(":")
    return getattr(import_module(module), name)
