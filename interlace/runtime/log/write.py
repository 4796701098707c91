"""An observer that writes every event, and checkpoints, to files of bounded size."""

from __future__ import annotations

import copyreg
import io
import logging
import os
import pickle
from collections.abc import Callable, Sequence
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import IO, Any, Final

import msgspec

from interlace.core.messages import Command, Event, RequestArrived, Woke, WorkFinished
from interlace.engine.engine import Engine
from interlace.policy.base import System
from interlace.policy.cold_curve import ColdCurve
from interlace.runtime.log.codec import OpenWork, encode, track
from interlace.runtime.log.read import LENGTH, MAGIC, LogHeader, frame

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


_log = logging.getLogger(__name__)

#: Events of which there are many; after any other what is buffered is written.
_MANY: Final = (RequestArrived, WorkFinished, Woke)
_BUFFER_BYTES: Final = 1 << 16


class LogWriter:
    """Writes ``path``, and keeps the file before it as ``path`` with ``.1`` behind.

    Together they hold at most ``limit_bytes``. Each can be replayed by itself: a file that follows
    another begins with the engine as it then was. Without an ``engine`` there is one file, of any
    size. What is buffered is written at least once an
    epoch. A disk that is full ends this log, not the server.
    """

    def __init__(
        self,
        path: Path,
        header: LogHeader,
        engine: Engine | None = None,
        limit_bytes: int = 1 << 30,
    ) -> None:
        """Begin the file; one of that name is begun anew.

        Raises:
            OSError: it cannot be written.
        """
        self._path = path
        self._header = header
        self._engine = engine
        self._most_bytes = limit_bytes // 2
        self._begun: OpenWork = {}
        self._buffer = bytearray()
        self._size = 0
        self._file: IO[bytes] | None = self._begin(header)

    def __call__(self, now_ms: float, event: Event, commands: Sequence[Command]) -> None:
        if self._file is None:
            return
        entry = encode(now_ms, event, commands)
        track(self._begun, event, commands)
        self._buffer += len(entry).to_bytes(LENGTH, "little")
        self._buffer += entry
        if len(self._buffer) > _BUFFER_BYTES or not isinstance(event, _MANY):
            self.flush()

    def flush(self) -> None:
        """Write what is buffered."""
        if self._file is None:
            return
        try:
            self._file.write(self._buffer)
            self._size += len(self._buffer)
            self._buffer.clear()
            if self._size > self._most_bytes and self._engine is not None:
                self._rotate(self._engine)
        except OSError as error:
            self._file.close()
            self._file = None
            _log.error("%s: %s: events are not kept any more", self._path, error.strerror)

    def close(self) -> None:
        """Write what is buffered and close the file."""
        self.flush()
        if self._file is not None:
            self._file.close()
            self._file = None

    def _begin(self, header: LogHeader) -> IO[bytes]:
        self._path.parent.mkdir(parents=True, exist_ok=True)
        file = self._path.open("wb", buffering=0)
        start = MAGIC + frame(msgspec.msgpack.encode(header))
        file.write(start)
        self._size = len(start)
        return file

    def _rotate(self, engine: Engine) -> None:
        if self._file is not None:
            self._file.close()
        os.replace(self._path, previous_file(self._path))
        kept = save(engine, self._begun)
        self._file = self._begin(msgspec.structs.replace(self._header, checkpoint=kept))


def previous_file(path: Path) -> Path:
    """The name of the file before ``path``."""
    return path.with_name(path.name + ".1")
