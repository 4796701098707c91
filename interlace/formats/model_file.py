"""The Python file of a model, executed as a module of its own."""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType


def execute_file(source: Path, name: str) -> ModuleType:
    """Run a ``model.py`` as the module ``name``, which is kept in ``sys.modules``."""
    # A package, so that model.py may import files beside it: ``from . import blocks``.
    module = ModuleType(name)
    module.__file__ = str(source)
    module.__path__ = [str(source.parent)]
    module.__package__ = name
    sys.modules[name] = module
    exec(compile(source.read_bytes(), str(source), "exec"), module.__dict__)
    return module
