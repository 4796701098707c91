"""Which models' weights the page cache has, and which would have to be read from the disk."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from time import monotonic
from typing import Final, NamedTuple

from interlace.formats.page_cache import cached_part, drop_cached, read_ahead

#: Files are looked at this often at most, and for at most one part of the time in so many.
_PERIOD_S: Final = 1.0
_PART: Final = 100
#: A file that cannot leave the cache, as a batch or another process reads it, is retried at this
#: interval and at most this many times. Then the next read no longer waits for it.
_AGAIN_S: Final = 0.05
_TRIES: Final = 40
#: A file that was let in stays until its model runs, but no longer than this: the run may have been
#: given up.
_COMING_S: Final = 1.0


class _Entrant(NamedTuple):
    """A model that waits until there is room for its file, and what it does then."""

    model: str
    then: Callable[[], None]


class PageCacheWatch:
    """Watches files of weights in another thread; ``moved`` is called for each change only.

    A model counts as in the page cache until a look finds otherwise. ``most_bytes`` bounds the
    bytes of these files in the page cache. Before a file is read from the disk, files of the least
    recently run models leave the cache, and the read waits for that. ``give_up`` makes workers
    release a file before it leaves. A model whose file is not on disk only may run at any time, and
    its whole file counts. A file that is larger than the bound is read alone.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        moved: Callable[[str, bool], None],
        most_bytes: int | None = None,
        give_up: Callable[[str, Callable[[], None]], None] = lambda model, then: then(),
    ) -> None:
        self._loop = loop
        self._moved = moved
        self._most_bytes = most_bytes
        self._give_up = give_up
        self._files: dict[str, Path] = {}  #: who ran last is last
        self._tables: dict[str, Sequence[tuple[int, int]]] = {}
        self._on_disk: set[str] = set()
        self._there: dict[str, int] = {}  #: bytes that are there or may come, by model
        self._touched: set[str] = set()  #: since the last look; the next may not have seen that
        self._leaving: set[str] = set()
        self._stayed: set[str] = set()  #: they were to leave for the first entrant
        self._coming: dict[str, float] = {}  #: let in and not run yet, until when they stay
        self._entrants: deque[_Entrant] = deque()
        self._tries = 0
        self._timer: asyncio.TimerHandle | None = None
        self._looking = False

    def watch(self, model: str, file: Path, tables: Sequence[tuple[int, int]] = ()) -> None:
        """Look at this model's file from now on; ``tables`` in it are read ahead last."""
        self._tables[model] = tables
        new = model not in self._files
        self._files[model] = file
        if new:
            self.used(model)  # it may just have been written, and counts until it was looked at
        if self._timer is None and not self._looking:
            self._timer = self._loop.call_later(0.0, self._begin)

    def used(self, model: str) -> None:
        """It runs: others leave. If it reads its file for that, see ``read``."""
        if self._most_bytes is None or model not in self._files:
            return
        self._files[model] = self._files.pop(model)
        self._touched.add(model)
        came = self._coming.pop(model, None) is not None
        if model not in self._on_disk and model not in self._there:
            self._there[model] = _size(self._files[model])
            came = True
        if came:
            self._loop.call_soon(self._make_room)  # it is to run before it may have to leave

    def read(self, model: str) -> None:
        """Its file was just read, or will be by what runs: it is in the page cache."""
        if model in self._on_disk:
            self._on_disk.discard(model)
            self._there.pop(model, None)
            self._leaving.discard(model)  # it comes again
        self.used(model)

    def read_ahead(self, model: str, then: Callable[[], None]) -> None:
        """Read its file into the page cache, if a look found that it is not there.

        ``then`` is called once the files that must leave for it have left.
        """
        enter = partial(self._read_ahead, model, then)
        if self._most_bytes is not None and model in self._files:
            self._files[model] = self._files.pop(model)
        if self._most_bytes is None or model not in self._on_disk or model not in self._files:
            enter()
        else:
            self._entrants.append(_Entrant(model, enter))
            self._make_room()

    def gave_up(self, model: str) -> bool:
        """Nobody waits for its file any more; whether it was still to be let in."""
        waiting = next((one for one in self._entrants if one.model == model), None)
        if waiting is None:
            return False
        if waiting is self._entrants[0]:
            self._stayed.clear()
            self._tries = 0
        self._entrants.remove(waiting)
        self._loop.call_soon(self._make_room)
        return True

    def _read_ahead(self, model: str, then: Callable[[], None]) -> None:
        if model in self._on_disk and model in self._files:
            self._on_disk.discard(model)
            reading = self._files[model], self._tables[model]
            self._loop.run_in_executor(None, _read_ahead, *reading)
        then()

    def forget(self, model: str) -> None:
        """Its weights are nobody's."""
        path = self._files.pop(model, None)
        self._tables.pop(model, None)
        self._there.pop(model, None)
        if path is not None and self._most_bytes is not None:
            self._loop.run_in_executor(None, _drop, path)
        self._on_disk.discard(model)

    def close(self) -> None:
        """Look no more."""
        self._files.clear()
        self._there.clear()
        self._entrants.clear()
        if self._timer is not None:
            self._timer.cancel()

    def _begin(self) -> None:
        self._timer = None
        if self._files:
            self._looking = True
            looked = self._loop.run_in_executor(None, _look, dict(self._files))
            looked.add_done_callback(self._looked)

    def _looked(self, found: asyncio.Future[tuple[dict[str, _Cached], float]]) -> None:
        self._looking = False
        if found.cancelled() or not self._files:
            return
        cached, took_s = found.result()
        for model in cached.keys() & self._files.keys() - self._touched - self._leaving:
            one = cached[model]
            self._there[model] = one.nbytes if one.on_disk else one.file_bytes
            self._tell(model, one.on_disk)
        self._touched.clear()
        self._stayed.clear()
        self._make_room()
        self._timer = self._loop.call_later(max(_PERIOD_S, _PART * took_s), self._begin)

    def _tell(self, model: str, on_disk: bool) -> None:
        if on_disk != (model in self._on_disk):
            (self._on_disk.add if on_disk else self._on_disk.discard)(model)
            self._moved(model, on_disk)

    def _make_room(self) -> None:
        """Let in who waits for room, in turn; have files leave until the first of them has it."""
        while self._most_bytes is not None:
            first = self._entrants[0] if self._entrants else None
            needed_bytes = 0
            if first is not None and (path := self._files.get(first.model)) is not None:
                needed_bytes = _size(path) - self._there.get(first.model, 0)
            over_bytes = sum(self._there.values()) + needed_bytes - self._most_bytes
            if over_bytes > 0 and self._others_leave(over_bytes):
                return
            if first is None:
                return
            if over_bytes > 0 and (self._stayed or self._coming) and self._tries < _TRIES:
                self._tries += 1
                self._stayed.clear()
                self._loop.call_later(_AGAIN_S, self._make_room)
                return
            self._entrants.popleft()
            self._stayed.clear()
            self._tries = 0
            self._touched.add(first.model)
            if first.model in self._files:
                self._coming[first.model] = self._loop.time() + _COMING_S
                self._there[first.model] = self._there.get(first.model, 0) + needed_bytes
            first.then()

    def _others_leave(self, over_bytes: int) -> bool:
        """Have those leave that ran longest ago; whether any is on its way out."""
        over_bytes -= sum(self._there.get(model, 0) for model in self._leaving)
        now_s = self._loop.time()
        self._coming = {model: until for model, until in self._coming.items() if until > now_s}
        passed = self._leaving | self._stayed | self._coming.keys()
        passed |= {one.model for one in list(self._entrants)[:1]}
        for model in list(self._files)[: None if self._entrants else -1]:
            if over_bytes <= 0:
                break
            if model in passed or not self._there.get(model):
                continue
            over_bytes -= self._there[model]
            self._leaving.add(model)
            self._touched.add(model)
            self._tell(model, True)  # no batch begins on it meanwhile
            self._give_up(model, partial(self._drop, model))
        return bool(self._leaving)

    def _drop(self, model: str) -> None:
        path = self._files.get(model)
        dropped = self._loop.run_in_executor(None, _drop, path) if path is not None else None
        if dropped is not None:
            dropped.add_done_callback(partial(self._left, model))
        else:
            self._left(model, None)

    def _left(self, model: str, dropped: asyncio.Future[int] | None) -> None:
        left = model in self._leaving and model in self._files
        self._leaving.discard(model)
        self._touched.add(model)
        if left and dropped is not None and not dropped.cancelled():
            self._there[model] = dropped.result()
            self._tell(model, True)  # it may have been copied meanwhile
            if self._there[model]:
                self._stayed.add(model)
        self._make_room()


class _Cached(NamedTuple):
    """What of a file is in the page cache; whether most of it is on disk only."""

    nbytes: int
    file_bytes: int
    on_disk: bool


def _size(path: Path) -> int:
    with suppress(OSError):  # it is replaced, or being cleaned away
        return path.stat().st_size
    return 0


def _drop(path: Path) -> int:
    """Have a file leave the page cache; what of it is still there, as others have it mapped."""
    with suppress(OSError, ValueError):  # it is replaced, or being cleaned away
        drop_cached(path)
        return int(cached_part(path) * path.stat().st_size)
    return 0


def _read_ahead(path: Path, last: Sequence[tuple[int, int]]) -> None:
    with suppress(OSError, ValueError):
        read_ahead(path, last)


def _look(files: Mapping[str, Path]) -> tuple[dict[str, _Cached], float]:
    began = monotonic()
    found = {}
    for model, file in files.items():
        try:
            part, file_bytes = cached_part(file), file.stat().st_size
            found[model] = _Cached(int(part * file_bytes), file_bytes, 2 * part < 1)
        except (OSError, ValueError):  # it is replaced, or being cleaned away
            continue
    return found, monotonic() - began
