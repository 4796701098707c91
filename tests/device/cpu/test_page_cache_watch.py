"""What a watch tells of files that leave the page cache and come back."""

import asyncio
import os
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from interlace.device.cpu import page_cache_watch
from interlace.device.cpu.page_cache_watch import PageCacheWatch
from interlace.formats.page_cache import cached_part


def _dropped(folder: Path) -> Path:
    """A file that is on disk only."""
    dropped = folder / "dropped"
    dropped.write_bytes(os.urandom(4 << 20))
    with dropped.open("rb") as file:
        os.fsync(file.fileno())
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    if cached_part(dropped) >= 0.5:
        pytest.skip("this file system keeps its pages: it is one of memory")
    return dropped


class Watched:
    """A watch, what it told, and whose files workers were to let go of: at once, or as told to."""

    def __init__(self, most_bytes: int | None = None, holds: bool = False) -> None:
        self.told: list[tuple[str, bool]] = []
        self.let_go: list[str] = []
        self.holding: list[Callable[[], None]] = []
        self._holds = holds
        self.watch = PageCacheWatch(
            asyncio.get_running_loop(),
            lambda *one: self.told.append(one),
            most_bytes,
            self._give_up,
        )

    def _give_up(self, model: str, then: Callable[[], None]) -> None:
        self.let_go.append(model)
        if self._holds:
            self.holding.append(then)
        else:
            then()

    async def all_on_disk(self, folder: Path) -> dict[str, Path]:
        """Three files of which two may be cached, watched and told to be on disk by and by."""
        files = {name: _dropped(folder).rename(folder / name) for name in ("a", "b", "c")}
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(page_cache_watch, "_PERIOD_S", 0.01)
            patch.setattr(page_cache_watch, "_PART", 0)
            for count, (model, path) in enumerate(files.items(), 1):
                self.watch.watch(model, path)
                await until(lambda: len(self.told) >= count)  # noqa: B023
        return files


async def until(condition: Callable[[], bool]) -> None:
    while not condition():
        await asyncio.sleep(0.01)


def play(body: Callable[[Watched], Awaitable[None]], *how: Any) -> None:
    """Run a test on a loop of its own."""

    async def whole() -> None:
        watched = Watched(*how)
        async with asyncio.timeout(60.0):
            await body(watched)
        watched.watch.close()

    asyncio.run(whole())


#: Room for two of three files.
TWO = 9 << 20


def test_each_change_of_tier_is_told_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(page_cache_watch, "_PERIOD_S", 0.01)
    path = tmp_path / "weights"
    path.write_bytes(os.urandom(4 << 20))
    dropped = _dropped(tmp_path)

    async def body(watched: Watched) -> None:
        for model, file in (("here", path), ("there", dropped), ("gone", tmp_path / "none")):
            watched.watch.watch(model, file)
        await until(lambda: bool(watched.told))
        dropped.read_bytes()
        await until(lambda: len(watched.told) >= 2)
        watched.watch.close()
        await asyncio.sleep(0.05)
        assert watched.told == [("there", True), ("there", False)]

    play(body)


def test_what_is_read_ahead_comes_into_the_page_cache(tmp_path: Path) -> None:
    dropped = _dropped(tmp_path)

    async def body(watched: Watched) -> None:
        left = asyncio.Event()
        watched.watch.watch("there", dropped)
        await until(lambda: bool(watched.told))
        watched.watch.read_ahead("there", left.set)
        await until(lambda: cached_part(dropped) == 1.0)
        assert left.is_set()

    play(body)


def test_files_of_those_that_ran_longest_ago_leave_the_page_cache(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(page_cache_watch, "_PERIOD_S", 0.01)
    files = {name: _dropped(tmp_path).rename(tmp_path / name) for name in ("a", "b", "c")}
    for path in files.values():
        path.read_bytes()

    async def body(watched: Watched) -> None:
        for model, path in files.items():
            watched.watch.watch(model, path)
        watched.watch.used("a")
        await until(lambda: {model for model, _ in watched.told} == {"b", "c"})
        assert {*watched.let_go} == {"b", "c"}

    play(body, 5 << 20)
    assert cached_part(files["a"]) == 1.0 and cached_part(files["b"]) == 0.0


def test_what_is_read_between_two_looks_has_others_leave(tmp_path: Path) -> None:
    async def body(watched: Watched) -> None:
        await watched.all_on_disk(tmp_path)
        seen = []
        for model in ("a", "b", "a", "c", "b"):
            let_in = asyncio.Event()
            watched.watch.read_ahead(model, let_in.set)
            await let_in.wait()
            seen.append(" ".join(watched.let_go))
        assert seen == ["", "", "", "b", "b a"], "two files are the most; the oldest leaves"

    play(body, TWO)


def test_what_is_let_in_waits_until_others_have_left(tmp_path: Path) -> None:
    """So that there is never more than the bound; and who left is told to be on disk at once."""

    async def body(watched: Watched) -> None:
        files = await watched.all_on_disk(tmp_path)
        for model in ("a", "b"):
            files[model].read_bytes()
            watched.watch.read(model)
        let_in = asyncio.get_running_loop().create_future()
        watched.told.clear()
        watched.watch.read_ahead(
            "c", lambda: let_in.set_result([cached_part(one) for one in files.values()])
        )
        await asyncio.sleep(0.1)
        assert not let_in.done(), "a worker still has the file of one"
        (left,) = watched.holding
        left()
        assert (await let_in)[:2] == [0.0, 1.0]
        assert ("a", True) in watched.told

    play(body, TWO, True)


def test_who_is_given_up_while_it_waits_is_not_let_in(tmp_path: Path) -> None:
    async def body(watched: Watched) -> None:
        await watched.all_on_disk(tmp_path)
        watch, let_in = watched.watch, list[str]()
        for model in "abc":
            watch.read_ahead(model, partial(let_in.append, model))
        await until(lambda: bool(watched.holding))
        assert let_in == ["a", "b"], "c waits until one of them has left"
        assert watch.gave_up("c") and not watch.gave_up("c")
        watched.holding.pop()()
        watch.read_ahead("a", partial(let_in.append, "a again"))
        await until(lambda: "a again" in let_in)
        await asyncio.sleep(0.1)
        assert "c" not in let_in

    play(body, TWO, True)


def test_what_was_just_written_counts_before_it_is_looked_at(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(page_cache_watch, "_look", lambda files: ({}, 0.0))
    files = {name: _dropped(tmp_path).rename(tmp_path / name) for name in ("a", "b", "c")}

    async def body(watched: Watched) -> None:
        for model, path in files.items():
            watched.watch.watch(model, path)
        await until(lambda: bool(watched.let_go))
        watched.watch.watch("b", files["b"])
        watched.watch.read("a")  # a worker that is new has opened it, and run it for that
        await until(lambda: len(watched.let_go) >= 2)
        assert watched.let_go == ["a", "b"]

    play(body, TWO)


class _FakeCache:
    """Files by name alone: what is read comes whole, and the first of those that leave stay."""

    def __init__(self, sizes: dict[str, int], most_bytes: int, staying: int) -> None:
        self.sizes, self.most_bytes = sizes, most_bytes
        self.cached = dict.fromkeys(sizes, 0)
        self.staying = staying
        self.running: set[str] = set()
        self.worst_bytes = 0

    def drop(self, path: Path) -> int:
        if self.staying:
            self.staying -= 1
        else:
            self.cached[path.name] = 0
        return self.cached[path.name]

    async def run(self, model: str) -> None:
        self.running.add(model)
        await asyncio.sleep(0)
        self.cached[model] = self.sizes[model]
        self.worst_bytes = max(self.worst_bytes, sum(self.cached.values()))
        await asyncio.sleep(0)
        self.running.discard(model)

    def give_up(self, model: str, then: Callable[[], None]) -> None:
        """A worker lets go once its batch has ended."""
        if model in self.running:
            asyncio.get_running_loop().call_soon(self.give_up, model, then)
        else:
            then()

    def look(self, files: Mapping[str, Path]) -> tuple[dict[str, page_cache_watch._Cached], float]:
        found = {}
        for model in files:
            part = self.cached[model], self.sizes[model]
            found[model] = page_cache_watch._Cached(*part, 2 * part[0] < part[1])
        return found, 0.0


@given(
    st.dictionaries(st.sampled_from("abcdef"), st.integers(1, 9), min_size=2),
    st.integers(0, 18),
    st.integers(0, 5),
    st.lists(st.tuples(st.sampled_from("abcdef"), st.integers(0, 2)), max_size=30),
)
@settings(deadline=None)
def test_the_bound_is_never_exceeded(
    sizes: dict[str, int], more_bytes: int, staying: int, asked: list[tuple[str, int]]
) -> None:
    """Models are asked at once or one after the other; none runs that is told to be on disk."""
    fake = _FakeCache(sizes, max(sizes.values()) + more_bytes, staying)

    async def serve() -> None:
        on_disk: set[str] = set()

        def moved(model: str, there: bool) -> None:
            (on_disk.add if there else on_disk.discard)(model)

        watch = PageCacheWatch(asyncio.get_running_loop(), moved, fake.most_bytes, fake.give_up)

        async def answer(model: str) -> None:
            while model in on_disk:
                let_in = asyncio.Event()
                watch.read_ahead(model, let_in.set)
                await let_in.wait()
                on_disk.discard(model)
            watch.used(model)
            await fake.run(model)

        for model in sizes:
            watch.watch(model, Path(model))
        while len(on_disk) < len(sizes):
            await asyncio.sleep(0)
        going = []
        for model, pauses in asked:
            if model in sizes and model not in fake.running:
                going.append(asyncio.ensure_future(answer(model)))
            for _ in range(pauses):
                await asyncio.sleep(0)
        await asyncio.gather(*going)
        watch.close()

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(page_cache_watch, "_COMING_S", 60.0)  # however long the machine stalls
        patch.setattr(page_cache_watch, "_AGAIN_S", 0.0)
        patch.setattr(page_cache_watch, "_PERIOD_S", 0.0)
        patch.setattr(page_cache_watch, "_drop", fake.drop)
        patch.setattr(page_cache_watch, "_look", fake.look)
        patch.setattr(page_cache_watch, "_read_ahead", lambda path, last: None)
        patch.setattr(page_cache_watch, "_size", lambda path: fake.sizes[path.name])
        asyncio.run(asyncio.wait_for(serve(), 60.0))
    assert fake.worst_bytes <= fake.most_bytes
