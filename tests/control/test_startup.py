"""A start that takes long says how far it is."""

import asyncio
import logging
from collections.abc import AsyncIterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from interlace.control import startup
from interlace.control.registry import VersionRegistry
from interlace.control.startup import Startup
from interlace.core.errors import RepositoryError
from interlace.core.model import Format
from interlace.profiling import sweep
from interlace.profiling.store import FillResult
from interlace.profiling.sweep import no_progress


class OneAfterTheOther:
    """Of what cannot be opened; nothing is read before the one of a smaller number was opened."""

    root = Path("models")

    def __init__(self) -> None:
        self._opened = {number: asyncio.Event() for number in range(1, 4)}

    async def names(self) -> list[str]:
        return ["m1", "m2", "m3"]

    async def found(self, name: str) -> Any:
        return SimpleNamespace(error=None, versions=(int(name[1:]),))

    async def draft(self, name: str, version: int) -> Any:
        if version > 1:
            await self._opened[version - 1].wait()
        return SimpleNamespace(name=name, version=version, notes=(), format=Format.ONNX)

    async def open(self, draft: Any, generation: int) -> None:
        self._opened[draft.version].set()
        await asyncio.sleep(0.03 * draft.version)
        raise RepositoryError(draft.name, "nothing", "a model")

    async def profiles_by_parts(self, models: Any, progress: Any) -> AsyncIterator[FillResult]:
        assert not models
        yield FillResult()


class NothingDeployed:
    async def settled(self, limit_s: float) -> bool:
        return True


NO_ENSEMBLES: Any = SimpleNamespace(serve_all=lambda drafts: [], follow=lambda: None)


UNUSED: Any = None


def starting(registry: VersionRegistry, preparer: object = None, *more: float) -> Startup:
    preparation, deployments = (
        cast(Any, preparer or OneAfterTheOther()),
        cast(Any, NothingDeployed()),
    )
    return Startup(preparation, deployments, UNUSED, registry, UNUSED, NO_ENSEMBLES, *more)


async def test_a_model_is_opened_while_others_are_read() -> None:
    registry = VersionRegistry()
    await asyncio.wait_for(starting(registry).run(no_progress), 30.0)
    assert sorted(entry.name for entry in registry.index(False)) == ["m1", "m2", "m3"]


async def test_what_is_being_opened_is_given_up_at_the_end() -> None:
    made = starting(VersionRegistry())
    begun = await made._begin("m1", asyncio.Semaphore(1))
    made.close()
    with pytest.raises(asyncio.CancelledError):
        await begun[0]


def test_how_many_models_are_open_is_told_meanwhile(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(sweep, "TELL_S", 0.01)

    with caplog.at_level(logging.INFO, "interlace.control.startup"):
        asyncio.run(starting(VersionRegistry()).run(no_progress))
    told = [one.message for one in caplog.records if one.levelno == logging.INFO]
    assert {"1 of 3 models are open", "2 of 3 models are open"} <= {
        text.partition(" (")[0] for text in told
    }


def test_processes_that_start_are_not_taken_for_the_pace_at_which_models_open() -> None:
    """Four import a library for 40 s; then twenty models a second are opened."""
    pace = startup._Pace()
    told = [pace.text(ready, 2000, 40.0) for ready in range(1, 9)]
    told += [pace.text(8 + more, 2000, 40.0 + more / 20) for more in range(1, 400)]
    assert not any("left" in text for text in told[:15])
    assert told[15] == "16 of 2000 models are open, about 99 s left"
    assert told[-1] == "407 of 2000 models are open, about 80 s left"


class OneThatIsReadForever(OneAfterTheOther):
    """Of three models the files of one are so many, or so large, that reading does not end."""

    async def names(self) -> list[str]:
        return ["m1", "m2", "m3", "notes"]

    async def found(self, name: str) -> Any:
        if name == "notes":
            return None
        return await super().found(name)

    async def draft(self, name: str, version: int) -> Any:
        if version == 2:
            await asyncio.Event().wait()
        return SimpleNamespace(name=name, version=version, notes=(), format=Format.ONNX)


async def test_a_model_that_is_read_for_long_is_not_waited_for() -> None:
    registry = VersionRegistry()
    made = starting(registry, OneThatIsReadForever(), 0.2)
    await asyncio.wait_for(made.run(no_progress), 10.0)
    made.close()
    states = {entry.name: (entry.version, entry.state) for entry in registry.index(False)}
    assert states == {
        "m1": ("1", "UNAVAILABLE"), "m2": ("", "LOADING"), "m3": ("3", "UNAVAILABLE"),
    }  # fmt: skip
    assert registry.missing() == {"m1", "m2", "m3"}


class MeasuredOneByOne:
    """Whatever is asked for, a part for each model, in that order."""

    async def profiles_by_parts(self, models: Any, progress: Any) -> AsyncIterator[FillResult]:
        for model in models:
            yield FillResult({model.key: cast(Any, object())})


async def test_models_are_served_one_by_one_but_those_of_an_app_together(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made = starting(VersionRegistry(), MeasuredOneByOne())
    app = SimpleNamespace(steps=[SimpleNamespace(model="b"), SimpleNamespace(model="d")])
    monkeypatch.setattr(startup, "readable", lambda drafts: [(None, app)])
    groups: list[list[str]] = []

    async def bring_up(self: Startup, opened: Any, filled: FillResult) -> list[Any]:
        assert filled.profiles.keys() >= {one.model.key for one in opened}
        groups.append([one.model.name for one in opened])
        return []

    monkeypatch.setattr(Startup, "_bring_up", bring_up)
    opened = [SimpleNamespace(model=SimpleNamespace(name=n, key=f"{n}/1#0")) for n in "abcde"]
    await made._bring_up_by_parts(cast(Any, opened), no_progress)
    assert groups == [["a"], [], ["c"], ["b", "d"], ["e"]]
