"""An observer that writes every event, and checkpoints, to files of bounded size."""

from __future__ import annotations

import copyreg
import io
import logging
import os
import pickle
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from importlib import import_module
from math import inf
from pathlib import Path
from typing import IO, Any, Final

import msgspec

from interlace.core.messages import Command, Event, RequestArrived, Woke, WorkFinished
from interlace.engine.engine import Engine
from interlace.policy.base import System
from interlace.policy.cold_curve import ColdCurve
from interlace.runtime.log.codec import (
    ENCODE,
    LENGTH,
    MAGIC,
    LogHeader,
    OpenWork,
    encode,
    frame,
    track,
)

_ROOMS: Final = ("interlace.core.", "interlace.engine.", "interlace.perf.", "interlace.policy.")
_CONTAINERS: Final = frozenset({"deque", "Counter", "OrderedDict", "defaultdict"})


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
            return lambda: self._system
        if (module, name) == (_Curve.__module__, _Curve.__qualname__):
            return partial(ColdCurve, self._system.cold.cold_start)
        if module == "collections" and name in _CONTAINERS:
            return super().find_class(module, name)
        found = getattr(import_module(module), name, None) if module.startswith(_ROOMS) else None
        if not isinstance(found, type) or not found.__module__.startswith(_ROOMS):
            raise pickle.UnpicklingError(f"{module}.{name} is no part of an engine")
        return found


_log = logging.getLogger(__name__)

#: Frequent events; the buffer is written after any other event.
_MANY: Final = (RequestArrived, WorkFinished, Woke)
_BUFFER_BYTES: Final = 1 << 16
#: A disk that was full is tried again this often: each time the engine has to be saved.
_AGAIN_MS: Final = 10_000.0


class LogWriter:
    """Writes ``path``, and keeps the file before it as ``path`` with ``.1`` behind.

    Together they hold at most ``limit_bytes``. Each can be replayed by itself: a file that follows
    another begins with the engine as it then was. Without an ``engine`` there is one file, of any
    size. What is buffered is written at least once an epoch. Where that fails, as on a full disk,
    events are counted until a file that follows can be begun; its header says how many are in
    neither. Without an engine the log ends there.
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
        self._buffered = 0  #: events
        self._lost = 0
        self._lost_from_ms = 0.0
        self._again_ms = 0.0
        path.parent.mkdir(parents=True, exist_ok=True)
        self._file: IO[bytes] | None = path.open("wb", buffering=0)
        self._size = _write(self._file, _head(header))

    def __call__(self, now_ms: float, event: Event, commands: Sequence[Command]) -> None:
        track(self._begun, event, commands)
        if self._file is None:
            if not self._lost:
                self._lost_from_ms = now_ms
            self._lost += 1
            if self._engine is not None and now_ms >= self._again_ms:
                self._resume(self._engine, now_ms)
            return
        if not self._buffer:
            self._lost_from_ms = now_ms
        entry = encode(now_ms, event, commands)
        self._buffer += len(entry).to_bytes(LENGTH, "little")
        self._buffer += entry
        self._buffered += 1
        if len(self._buffer) > _BUFFER_BYTES or not isinstance(event, _MANY):
            self.flush()

    def flush(self) -> None:
        """Write what is buffered."""
        if self._file is None:
            return
        try:
            self._size += _write(self._file, self._buffer)
            self._buffer.clear()
            self._buffered = 0
            if self._size > self._most_bytes and self._engine is not None:
                self._rotate(self._engine)
        except OSError as error:
            self._stop(self._file, error)

    def close(self) -> None:
        """Write what is buffered and close the file; events that come later begin no other."""
        self.flush()
        self._again_ms = inf
        if self._file is not None:
            self._file.close()
            self._file = None
        elif self._lost:
            _log.error("%s: the last %d events are not in it", self._path, self._lost)

    def _stop(self, file: IO[bytes], error: OSError) -> None:
        with suppress(OSError):
            file.truncate(self._size)  # a part of an entry
        file.close()
        self._file = None
        self._lost, self._buffered = self._buffered, 0
        self._buffer = bytearray()  # the error still holds the other
        self._again_ms = self._lost_from_ms + _AGAIN_MS
        until = "until a file can be begun again" if self._engine is not None else "any more"
        _log.error("%s: %s: events are not kept %s", self._path, error.strerror, until)

    def _resume(self, engine: Engine, now_ms: float) -> None:
        try:
            self._rotate(engine)
        except OSError:
            self._again_ms = now_ms + _AGAIN_MS
            return
        _log.warning(
            "%s: events are kept again; %d of %.0f s are not in it",
            self._path,
            self._lost,
            (now_ms - self._lost_from_ms) / 1e3,
        )
        self._lost = 0

    def _rotate(self, engine: Engine) -> None:
        """Begin a file that follows, aside until it is whole.

        Raises:
            OSError: it cannot be written; what was written before is as it was.
        """
        aside = self._path.with_name(self._path.name + ".next")
        header = msgspec.structs.replace(
            self._header,
            checkpoint=save(engine, self._begun),
            lost_events=self._lost,
            lost_from_ms=self._lost_from_ms if self._lost else 0.0,
            profiles={key: one.profile for key, one in engine.snapshot().models.items()},
        )
        file = aside.open("wb", buffering=0)
        try:
            size = _write(file, _head(header))
            with suppress(FileNotFoundError):  # somebody took it away
                os.replace(self._path, previous_file(self._path))
            os.replace(aside, self._path)
        except OSError:
            file.close()
            aside.unlink(missing_ok=True)
            raise
        if self._file is not None:
            self._file.close()
        self._file, self._size = file, size


def previous_file(path: Path) -> Path:
    """The name of the file before ``path``."""
    return path.with_name(path.name + ".1")


def _head(header: LogHeader) -> bytes:
    return MAGIC + frame(ENCODE(header))


def _write(file: IO[bytes], content: bytes | bytearray) -> int:
    """All of it: a disk that gets full takes a part, and only then none."""
    left = memoryview(content)
    while left:
        left = left[file.write(left) :]
    return len(content)
