"""What a watch tells of files that leave the page cache and come back."""

import asyncio
import os
from collections.abc import Callable, Mapping
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


async def _all_on_disk(watch: PageCacheWatch, files: dict[str, Path], told: list[Any]) -> None:
    """One file after the other is watched, and ``told`` to be on disk."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(page_cache_watch, "_PERIOD_S", 0.01)
        patch.setattr(page_cache_watch, "_PART", 0)
        for count, (model, path) in enumerate(files.items(), 1):
            watch.watch(model, path)
            while len(told) < count:
                await asyncio.sleep(0.01)


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

    async def read() -> bool:
        told, left = asyncio.Event(), asyncio.Event()
        watch = PageCacheWatch(asyncio.get_running_loop(), lambda *_: told.set())
        watch.watch("there", dropped)
        await told.wait()
        watch.read_ahead("there", left.set)
        while cached_part(dropped) < 1.0:
            await asyncio.sleep(0.01)
        watch.close()
        return left.is_set()

    assert asyncio.run(asyncio.wait_for(read(), 60.0))


def test_files_of_those_that_ran_longest_ago_leave_the_page_cache(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(page_cache_watch, "_PERIOD_S", 0.01)
    _dropped(tmp_path)
    files = {name: tmp_path / name for name in ("a", "b", "c")}
    for path in files.values():
        path.write_bytes(os.urandom(4 << 20))
        with path.open("rb") as file:
            os.fsync(file.fileno())

    async def watched() -> tuple[list[str], list[str]]:
        let_go: list[str] = []
        told: list[str] = []

        def give_up(model: str, then: Callable[[], None]) -> None:
            let_go.append(model)
            then()

        watch = PageCacheWatch(
            asyncio.get_running_loop(), lambda model, _: told.append(model), 5 << 20, give_up
        )
        for model, path in files.items():
            watch.watch(model, path)
        watch.used("a")
        while {*told} != {"b", "c"}:
            await asyncio.sleep(0.01)
        watch.close()
        return let_go, told

    let_go, _ = asyncio.run(asyncio.wait_for(watched(), 60.0))
    assert {*let_go} == {"b", "c"}
    assert cached_part(files["a"]) == 1.0 and cached_part(files["b"]) == 0.0


def test_what_is_read_between_two_looks_has_others_leave(tmp_path: Path) -> None:
    files = {name: _dropped(tmp_path).rename(tmp_path / name) for name in ("a", "b", "c")}

    async def watched() -> tuple[list[str], list[str]]:
        let_go: list[str] = []
        told: list[str] = []

        def give_up(model: str, then: Callable[[], None]) -> None:
            let_go.append(model)
            then()

        watch = PageCacheWatch(
            asyncio.get_running_loop(), lambda model, _: told.append(model), 9 << 20, give_up
        )
        await _all_on_disk(watch, files, told)
        seen = []
        for model in ("a", "b", "a", "c", "b"):
            let_in = asyncio.Event()
            watch.read_ahead(model, let_in.set)
            await let_in.wait()
            seen.append(" ".join(let_go))
        watch.close()
        return seen, let_go

    seen, let_go = asyncio.run(asyncio.wait_for(watched(), 60.0))
    assert seen == ["", "", "", "b", "b a"], "two files are the most; who ran longest ago leaves"
    assert let_go == ["b", "a"]


def test_what_is_let_in_waits_until_others_have_left(tmp_path: Path) -> None:
    """So that there is never more than the bound; and who left is told to be on disk at once."""
    files = {name: _dropped(tmp_path).rename(tmp_path / name) for name in ("a", "b", "c")}
    holding: list[Callable[[], None]] = []

    async def watched() -> tuple[list[float], list[tuple[str, bool]]]:
        told: list[tuple[str, bool]] = []
        loop = asyncio.get_running_loop()
        watch = PageCacheWatch(
            loop, lambda *one: told.append(one), 9 << 20, lambda model, then: holding.append(then)
        )
        await _all_on_disk(watch, files, told)
        for model in ("a", "b"):
            files[model].read_bytes()
            watch.read(model)
        let_in = loop.create_future()
        told.clear()
        watch.read_ahead(
            "c", lambda: let_in.set_result([cached_part(one) for one in files.values()])
        )
        await asyncio.sleep(0.1)
        assert len(holding) == 1 and not let_in.done(), "a worker still has the file of one"
        holding[0]()
        parts = await let_in
        watch.close()
        return parts, told

    parts, told = asyncio.run(asyncio.wait_for(watched(), 60.0))
    assert parts[:2] == [0.0, 1.0]
    assert ("a", True) in told


def test_what_was_just_written_counts_before_it_is_looked_at(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(page_cache_watch, "_look", lambda files: ({}, 0.0))
    files = {name: _dropped(tmp_path).rename(tmp_path / name) for name in ("a", "b", "c")}

    async def watched() -> list[str]:
        let_go: list[str] = []

        def give_up(model: str, then: Callable[[], None]) -> None:
            let_go.append(model)
            then()

        watch = PageCacheWatch(asyncio.get_running_loop(), lambda *_: None, 9 << 20, give_up)
        for model, path in files.items():
            watch.watch(model, path)
        while not let_go:
            await asyncio.sleep(0.01)
        watch.watch("b", files["b"])
        watch.read("a")  # a worker that is new has opened it, and run it for that
        while len(let_go) < 2:
            await asyncio.sleep(0.01)
        watch.close()
        return let_go

    assert asyncio.run(asyncio.wait_for(watched(), 20.0)) == ["a", "b"]


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


def test_who_is_given_up_while_it_waits_is_not_let_in(tmp_path: Path) -> None:
    files = {name: _dropped(tmp_path).rename(tmp_path / name) for name in ("a", "b", "c")}
    holding: list[Callable[[], None]] = []

    async def watched() -> list[str]:
        told: list[str] = []
        let_in: list[str] = []
        watch = PageCacheWatch(
            asyncio.get_running_loop(),
            lambda model, _: told.append(model),
            9 << 20,
            lambda model, then: holding.append(then),
        )
        await _all_on_disk(watch, files, told)
        for model in "abc":
            watch.read_ahead(model, partial(let_in.append, model))
        while not holding:
            await asyncio.sleep(0.01)
        assert let_in == ["a", "b"], "c waits until one of them has left"
        assert watch.gave_up("c") and not watch.gave_up("c")
        holding.pop()()
        watch.read_ahead("a", partial(let_in.append, "a again"))
        while "a again" not in let_in:
            await asyncio.sleep(0.01)
        await asyncio.sleep(0.1)
        watch.close()
        return let_in

    assert "c" not in asyncio.run(asyncio.wait_for(watched(), 60.0))
