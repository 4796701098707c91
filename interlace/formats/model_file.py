"""The Python file of a model, executed as a module of its own."""

from __future__ import annotations

import sys
import traceback
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


def place_of(error: BaseException, folder: Path) -> str:
    """The last line of the model's own files that an error came through."""
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if frame.filename.startswith(f"{folder}/")]
    return f" ({Path(own[-1].filename).name}, line {own[-1].lineno})" if own else ""
