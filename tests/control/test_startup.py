"""A start that takes long says how far it is."""

import asyncio
import logging
from types import SimpleNamespace
from typing import Any, cast

import pytest

from interlace.control import startup
from interlace.control.registry import VersionRegistry
from interlace.control.startup import Startup
from interlace.core.errors import RepositoryError


class OneAfterTheOther:
    async def open(self, draft: Any, generation: int) -> None:
        await asyncio.sleep(0.02 * draft.version)
        raise RepositoryError(draft.name, "nothing", "a model")


def test_how_many_models_are_open_is_told_meanwhile(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(startup, "_TELL_S", 0.0)
    unused = cast(Any, None)
    made = Startup(cast(Any, OneAfterTheOther()), unused, unused, VersionRegistry(), unused)
    drafts = [SimpleNamespace(name=f"m{n}", version=n, notes=()) for n in (1, 2, 3)]
    with caplog.at_level(logging.INFO, "interlace.control.startup"):
        asyncio.run(made._open_all(cast(Any, drafts)))
    told = [one.message for one in caplog.records if one.levelno == logging.INFO]
    assert [text.partition(",")[0] for text in told] == [
        "1 of 3 models are open",
        "2 of 3 models are open",
    ]


def test_processes_that_start_are_not_taken_for_the_pace_at_which_models_open() -> None:
    """Four import a library for 40 s; then twenty models a second are opened."""
    pace = startup._Pace(2000)
    told = [pace.text(ready, 40.0) for ready in range(1, 9)]
    told += [pace.text(8 + more, 40.0 + more / 20) for more in range(1, 400)]
    assert not any("left" in text for text in told[:15])
    assert told[15] == "16 of 2000 models are open, about 99 s left"
    assert told[-1] == "407 of 2000 models are open, about 80 s left"
