"""Modules that a model imports from its own folders, kept apart from those of other models."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from itertools import takewhile
from pathlib import Path
from types import ModuleType
from typing import ClassVar


class OwnModules:
    """The import path and the imported modules of one model.

    Models that share a process may each have a ``preprocessing.py``. One model's modules are in
    ``sys.modules`` at a time: those of the model that ran last.
    """

    _active: ClassVar[OwnModules | None] = None
    #: The last module imported before any model's. Looking at those takes milliseconds, and copies
    #: the pages of 14 MB that workers share.
    _last_shared: ClassVar[str] = ""

    def __init__(self, folder: Path) -> None:
        """Imports find what lies in the ``folder`` of its file and in its parent, as in Triton."""
        self.folder = folder.parent
        self._folders = [str(folder), str(folder.parent)]
        self._modules: dict[str, ModuleType] = {}

    def activate(self) -> None:
        """Let imports find this model's modules."""
        active = OwnModules._active
        if active is self:
            return
        if active is not None:
            active.deactivate()
        OwnModules._last_shared = OwnModules._last_shared or next(reversed(sys.modules))
        sys.path.extend(self._folders)
        sys.modules.update(self._modules)
        OwnModules._active = self

    def deactivate(self) -> None:
        """Take this model's modules out of ``sys.modules``, if they are there."""
        if OwnModules._active is not self:
            return
        OwnModules._active = None
        sys.path[:] = [path for path in sys.path if path not in self._folders]
        new = list(takewhile(OwnModules._last_shared.__ne__, reversed(sys.modules)))
        own = [name for name in new if self._owns(sys.modules[name])]
        self._modules = {name: sys.modules.pop(name) for name in own}

    def _owns(self, module: ModuleType) -> bool:
        # Libraries put objects there whose attributes are made when they are asked for.
        known = getattr(module, "__dict__", {})
        path = known.get("__path__")
        places = [known.get("__file__"), *(path if isinstance(path, Iterable) else ())]
        return any(str(place).startswith(f"{self.folder}/") for place in places)
