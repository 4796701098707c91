"""A running engine as bytes, for logs whose beginning has been thrown away.

Such a log is of bounded size: its older part is thrown away, and what had become of it is kept
here. Reading one makes data only: the unpickler knows the engine's own classes and no functions,
so that a log from a stranger runs none of the stranger's code.
"""

from __future__ import annotations

import copyreg
import io
import pickle
from collections.abc import Callable
from functools import partial
from importlib import import_module
from typing import Any, Final

from interlace.engine.engine import Engine
from interlace.policy.base import System
from interlace.policy.cold_curve import ColdCurve
from interlace.runtime.log.codec import OpenWork

_ROOMS: Final = ("interlace.core.", "interlace.engine.", "interlace.perf.", "interlace.policy.")
_CONTAINERS: Final = frozenset({"deque", "Counter", "OrderedDict", "defaultdict"})
_SYSTEM: Final = "the system"


def save(engine: Engine, begun: OpenWork) -> bytes:
    """Serialize the engine's state and the work it waits for, without its policies."""
    kept = io.BytesIO()
    pickler = pickle.Pickler(kept, protocol=5)
    pickler.dispatch_table = copyreg.dispatch_table.copy()
    pickler.dispatch_table[System] = lambda system: (_Named, ())
    pickler.dispatch_table[ColdCurve] = lambda curve: (
        _Curve,
        (curve.layers, curve.links, curve.host),
    )
    pickler.dump((engine, dict(begun)))
    return kept.getvalue()


def restore(kept: bytes, system: System) -> tuple[Engine, OpenWork]:
    """The engine as it was saved, with the policies of ``system``.

    Raises:
        pickle.UnpicklingError: it holds anything but an engine's parts.
    """
    engine, begun = _Reader(io.BytesIO(kept), system).load()
    if not isinstance(engine, Engine) or not isinstance(begun, dict):
        raise pickle.UnpicklingError("no engine is in it")
    return engine, begun


class _Named:
    """Stands for the system in a checkpoint."""


class _Curve:
    """Stands for a cold curve by the system's policy: it is made anew."""


class _Reader(pickle.Unpickler):
    def __init__(self, file: io.BytesIO, system: System) -> None:
        super().__init__(file)
        self._system = system

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) == (_Named.__module__, _Named.__qualname__):
            return self._named()
        if (module, name) == (_Curve.__module__, _Curve.__qualname__):
            return partial(ColdCurve, self._system.cold.cold_start)
        if module == "collections" and name in _CONTAINERS:
            return super().find_class(module, name)
        found = getattr(import_module(module), name, None) if module.startswith(_ROOMS) else None
        if not isinstance(found, type) or not found.__module__.startswith(_ROOMS):
            raise pickle.UnpicklingError(f"{module}.{name} is no part of an engine")
        return found

    def _named(self) -> Callable[[], System]:
        return lambda: self._system
