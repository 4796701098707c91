"""Which models' weights the page cache gave up: they would have to be read from the disk."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from time import monotonic
from typing import Final

from interlace.formats.page_cache import mostly_cached, read_ahead

#: Files are looked at this often at most, and for at most one part of the time in so many.
_PERIOD_S: Final = 1.0
_PART: Final = 100


class PageCacheWatch:
    """Looks at files of weights in another thread; ``moved`` hears of each change, and no more.

    A model is taken to be in the page cache until it is seen not to be.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, moved: Callable[[str, bool], None]) -> None:
        self._loop = loop
        self._moved = moved
        self._files: dict[str, Path] = {}
        self._on_disk: set[str] = set()
        self._timer: asyncio.TimerHandle | None = None
        self._looking = False

    def watch(self, model: str, file: Path) -> None:
        """Look at this model's file from now on."""
        self._files[model] = file
        if self._timer is None and not self._looking:
            self._timer = self._loop.call_later(0.0, self._begin)

    def read(self, model: str) -> None:
        """Its file was just read: it is in the page cache."""
        self._on_disk.discard(model)

    def read_ahead(self, model: str) -> None:
        """Have its file come into the page cache, if it was seen not to be there."""
        if model in self._on_disk:
            self._on_disk.discard(model)
            self._loop.run_in_executor(None, _read_ahead, self._files[model])

    def forget(self, model: str) -> None:
        """Its weights are nobody's."""
        self._files.pop(model, None)
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

    def _looked(self, found: asyncio.Future[tuple[dict[str, bool], float]]) -> None:
        self._looking = False
        if found.cancelled() or not self._files:
            return
        on_disk, took_s = found.result()
        for model, told in on_disk.items():
            if model in self._files and told != (model in self._on_disk):
                (self._on_disk.add if told else self._on_disk.discard)(model)
                self._moved(model, told)
        self._timer = self._loop.call_later(max(_PERIOD_S, _PART * took_s), self._begin)


def _read_ahead(path: Path) -> None:
    with suppress(OSError):
        read_ahead(path)


def _look(files: Mapping[str, Path]) -> tuple[dict[str, bool], float]:
    began = monotonic()
    found = {}
    for model, file in files.items():
        try:
            found[model] = not mostly_cached(file)
        except (OSError, ValueError):  # it is replaced, or being cleaned away
            continue
    return found, monotonic() - began
