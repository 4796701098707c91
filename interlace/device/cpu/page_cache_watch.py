"""Which models' weights the page cache has, and which would have to be read from the disk."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path
from time import monotonic
from typing import Final, NamedTuple

from interlace.formats.page_cache import cached_part, drop_cached, read_ahead

#: Files are looked at this often at most, and for at most one part of the time in so many.
_PERIOD_S: Final = 1.0
_PART: Final = 100


class PageCacheWatch:
    """Looks at files of weights in another thread; ``moved`` hears of each change, and no more.

    A model is taken to be in the page cache until it is seen not to be. With ``most_bytes`` the
    files of those that ran longest ago leave it, until so much of them is there at most (but for
    the one that ran last); ``give_up`` has others let go of a model's file before. Between two
    looks whose model has run, or is let in, is taken to be there whole.
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
        self._files: dict[str, Path] = {}
        self._on_disk: set[str] = set()
        self._cached: dict[str, _Cached] = {}
        self._touched: set[str] = set()  #: since the last look; the next may not have seen that
        self._timer: asyncio.TimerHandle | None = None
        self._looking = False

    def watch(self, model: str, file: Path) -> None:
        """Look at this model's file from now on."""
        self._files[model] = file
        if self._timer is None and not self._looking:
            self._timer = self._loop.call_later(0.0, self._begin)

    def used(self, model: str) -> None:
        """It runs: others leave."""
        self._let_in(model, lambda: None)

    def read(self, model: str) -> None:
        """Its file was just read: it is in the page cache."""
        self._on_disk.discard(model)
        self.used(model)

    def read_ahead(self, model: str, then: Callable[[], None]) -> None:
        """Have its file come into the page cache, if it was seen not to be there.

        ``then`` is called once those that leave for it have left.
        """
        self._let_in(model, partial(self._read_ahead, model, then))

    def _read_ahead(self, model: str, then: Callable[[], None]) -> None:
        if model in self._on_disk and model in self._files:
            self._on_disk.discard(model)
            self._loop.run_in_executor(None, _read_ahead, self._files[model])
        then()

    def _let_in(self, model: str, then: Callable[[], None]) -> None:
        if self._most_bytes is None or model not in self._files:
            then()
            return
        self._files[model] = self._files.pop(model)
        self._touched.add(model)
        seen = self._cached.get(model)
        if seen is not None and seen.nbytes < seen.file_bytes:
            self._cached[model] = seen._replace(nbytes=seen.file_bytes)
            self._give_back(self._most_bytes, then)
        else:
            then()

    def forget(self, model: str) -> None:
        """Its weights are nobody's."""
        path = self._files.pop(model, None)
        self._cached.pop(model, None)
        if path is not None and self._most_bytes is not None:
            self._loop.run_in_executor(None, _drop, path)
        self._on_disk.discard(model)

    def close(self) -> None:
        """Look no more."""
        self._files.clear()
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
        unseen = self._touched | (cached.keys() - self._files.keys())
        cached = {model: one for model, one in cached.items() if model not in unseen}
        self._cached = {m: one for m, one in self._cached.items() if m in self._touched} | cached
        self._touched.clear()
        for model, one in cached.items():
            if one.on_disk != (model in self._on_disk):
                (self._on_disk.add if one.on_disk else self._on_disk.discard)(model)
                self._moved(model, one.on_disk)
        if self._most_bytes is not None:
            self._give_back(self._most_bytes, lambda: None)
        self._timer = self._loop.call_later(max(_PERIOD_S, _PART * took_s), self._begin)

    def _give_back(
        self, most_bytes: int, then: Callable[[], None], passed: frozenset[str] = frozenset()
    ) -> None:
        """Have files leave until so much is there at most, and go on when they have left.

        What of one stays, as others have it mapped, is made up for by those that ran later.
        """
        over_bytes = sum(one.nbytes for one in self._cached.values()) - most_bytes
        leaving: list[str] = []
        for model in list(self._files)[:-1]:
            if over_bytes <= 0:
                break
            seen = self._cached.get(model)
            if seen is not None and seen.nbytes and model not in passed:
                over_bytes -= seen.nbytes
                self._cached[model] = seen._replace(nbytes=0)
                self._touched.add(model)
                leaving.append(model)
        left = len(leaving)

        def gone(model: str, dropped: asyncio.Future[int] | None = None) -> None:
            nonlocal left
            left -= 1
            seen = self._cached.get(model)
            if dropped and not dropped.cancelled() and seen and not seen.nbytes:
                seen = self._cached[model] = seen._replace(nbytes=dropped.result())
            if seen is not None and not seen.nbytes and model not in self._on_disk:
                self._on_disk.add(model)
                self._moved(model, True)
            if not left:
                self._give_back(most_bytes, then, passed | {*leaving})

        def drop(model: str) -> None:
            if model in self._files:
                dropped = self._loop.run_in_executor(None, _drop, self._files[model])
                dropped.add_done_callback(partial(gone, model))
            else:
                gone(model)

        if not leaving:
            then()
        for model in leaving:
            self._give_up(model, partial(drop, model))


class _Cached(NamedTuple):
    """What of a file is in the page cache; whether most of it is on disk only."""

    nbytes: int
    file_bytes: int
    on_disk: bool


def _drop(path: Path) -> int:
    """Have a file leave the page cache; what of it is still there, as others have it mapped."""
    with suppress(OSError, ValueError):  # it is replaced, or being cleaned away
        drop_cached(path)
        return int(cached_part(path) * path.stat().st_size)
    return 0


def _read_ahead(path: Path) -> None:
    with suppress(OSError):
        read_ahead(path)


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
