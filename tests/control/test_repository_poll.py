"""What is loaded and unloaded as the folder of models changes."""

import asyncio
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest

from interlace.control import repository_poll
from interlace.control.registry import VersionEntry, VersionRegistry, VersionState
from interlace.control.repository_poll import RepositoryPoll
from interlace.core.errors import Reason, ServeError
from interlace.repository.digest import Digests
from interlace.repository.draft import read
from interlace.repository.folder import folder_names, scan_folder
from tests.server.fakes import one_to_one

CONFIG = 'backend: "python"\n'


class Stand:
    """A real folder; what is asked of a server stands in ``asked``."""

    def __init__(self, root: Path) -> None:
        self.root, self.asked, self.digests = root, list[str](), Digests()
        self.registry = VersionRegistry()
        self.poll = RepositoryPoll(cast(Any, self), cast(Any, self), self.registry, 0.001)
        self.looks = 0
        self.at_look: Callable[[int], None] = lambda number: None

    def put(self, name: str, code: str = "pass", toml: str = "") -> None:
        folder = self.root / name / "1"
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "model.py").write_text(code)
        (self.root / name / "config.pbtxt").write_text(CONFIG)
        (self.root / name / "interlace.toml").write_text(toml)

    def start(self, *names: str) -> None:
        """As if a server had begun with these."""
        for name in names:
            served = read(self.root, name, 1, None, self.digests)
            model = replace(one_to_one(name), digest=served.digest)
            self.registry.put(VersionEntry(name, "1", VersionState.READY, model=model))

    async def look_again(self) -> None: ...

    async def names(self) -> list[str]:
        self.looks += 1
        self.at_look(self.looks)
        return folder_names(self.root)

    async def found(self, name: str) -> object:
        return scan_folder(self.root, name)

    async def draft(self, name: str, version: int) -> object:
        return read(self.root, name, version, None, self.digests)

    async def load(self, name: str) -> None:
        self.asked.append(f"load {name}")
        if "broken" in (self.root / name / "1/model.py").read_text():
            raise ServeError(Reason.BACKEND, "it does not open")

    async def unload(self, name: str) -> None:
        self.asked.append(f"unload {name}")

    def after(self, looks: int = 3) -> list[str]:
        """What was asked since, so many looks later."""

        async def look() -> None:
            task, until = asyncio.ensure_future(self.poll.run()), self.looks + looks
            while self.looks < until:
                await asyncio.sleep(0.001)
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

        self.asked.clear()
        asyncio.run(look())
        return self.asked


@pytest.fixture
def stand(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Stand:
    monkeypatch.setattr(repository_poll, "_SETTLE_S", 0.0)
    made = Stand(tmp_path / "models")
    for name in "ab":
        made.put(name)
    made.start("a", "b")
    assert made.after() == []
    return made


def test_new_changed_and_removed_models_are_followed_by_content(stand: Stand) -> None:
    stand.put("c")
    assert stand.after() == ["load c"]
    stand.put("a", "x = 1")
    assert stand.after() == ["load a"]
    stand.put("a", "x = 1", "slo_ms = 50")
    assert stand.after() == ["load a"]
    stand.put("a", "x = 1", "slo_ms = 50")  # written again, as it was
    assert stand.after() == []
    (stand.root / "b").rename(stand.root.parent / "elsewhere")
    assert stand.after() == ["unload b"]


def test_one_that_does_not_load_is_tried_again_when_it_changes(
    stand: Stand, caplog: pytest.LogCaptureFixture
) -> None:
    stand.put("a", "broken")
    assert stand.after(9) == ["load a"]
    assert "a stays as it was: it does not open" in caplog.text
    stand.put("a", "x = 2")
    stand.put("b", "y = 2")
    assert stand.after(9) == ["load a", "load b"]
    stand.put("a", "broken")
    assert stand.after(9) == ["load a"]
    stand.put("c")  # which may be what it lacks
    assert stand.after(9) == ["load a", "load c"]


def test_an_unexpected_failure_ends_no_poll(stand: Stand, caplog: pytest.LogCaptureFixture) -> None:
    stand.put("a", "x = 4")
    stand.at_look = lambda number: cast(None, 1 // 0)
    assert stand.after(9) == []
    assert caplog.text.count("what is served stays: integer division or modulo by zero") == 1
    stand.at_look = lambda number: None
    assert stand.after(9) == ["load a"]


def test_what_is_still_being_copied_waits(stand: Stand) -> None:
    stand.at_look = lambda number: stand.put("c", "x" * number)
    assert stand.after(9) == []
    stand.at_look = lambda number: None
    assert stand.after(9) == ["load c"]


def test_what_changed_while_the_server_began_is_loaded(stand: Stand) -> None:
    stand.poll = RepositoryPoll(cast(Any, stand), cast(Any, stand), stand.registry, 0.001)
    stand.put("a", "x = 3")
    stand.put("c")
    stand.registry.put(VersionEntry("c", "1", VersionState.UNAVAILABLE, "it was broken"))
    assert stand.after() == ["load a", "load c"]


@pytest.mark.parametrize("gone", [True, False])
def test_a_repository_that_is_not_mounted_takes_no_model_away(
    stand: Stand, gone: bool, caplog: pytest.LogCaptureFixture
) -> None:
    there = stand.root.rename(stand.root.parent / "elsewhere")
    if not gone:
        stand.root.mkdir()
    assert stand.after(9) == []
    assert caplog.text.count("what is served stays") == 1
    if not gone:
        stand.root.rmdir()
    there.rename(stand.root)
    assert stand.after() == []
