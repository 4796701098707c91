"""What a watch tells of files that leave the page cache and come back."""

import asyncio
import os
from pathlib import Path

import pytest

from interlace.device.cpu import page_cache_watch
from interlace.device.cpu.page_cache_watch import PageCacheWatch
from interlace.formats.page_cache import mostly_cached


def _dropped(folder: Path) -> Path:
    """A file that is on disk only."""
    dropped = folder / "dropped"
    dropped.write_bytes(os.urandom(4 << 20))
    with dropped.open("rb") as file:
        os.fsync(file.fileno())
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    if mostly_cached(dropped):
        pytest.skip("this file system keeps its pages: it is one of memory")
    return dropped


def test_each_change_of_tier_is_told_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(page_cache_watch, "_PERIOD_S", 0.01)
    path = tmp_path / "weights"
    path.write_bytes(os.urandom(4 << 20))
    dropped = _dropped(tmp_path)

    async def watched() -> list[tuple[str, bool]]:
        heard: list[tuple[str, bool]] = []
        watch = PageCacheWatch(asyncio.get_running_loop(), lambda *told: heard.append(told))
        for model, file in (("here", path), ("there", dropped), ("gone", tmp_path / "none")):
            watch.watch(model, file)
        while not heard:
            await asyncio.sleep(0.01)
        dropped.read_bytes()
        while len(heard) < 2:
            await asyncio.sleep(0.01)
        watch.close()
        await asyncio.sleep(0.05)
        return heard

    assert asyncio.run(asyncio.wait_for(watched(), 60.0)) == [("there", True), ("there", False)]


def test_what_is_read_ahead_comes_into_the_page_cache(tmp_path: Path) -> None:
    dropped = _dropped(tmp_path)

    async def read() -> None:
        told = asyncio.Event()
        watch = PageCacheWatch(asyncio.get_running_loop(), lambda *_: told.set())
        watch.watch("there", dropped)
        await told.wait()
        watch.read_ahead("there")
        while not mostly_cached(dropped):
            await asyncio.sleep(0.01)
        watch.close()

    asyncio.run(asyncio.wait_for(read(), 60.0))
