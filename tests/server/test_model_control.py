"""Loads that the code of models asks for end with its batch, and go on."""

from __future__ import annotations

import asyncio
import os
from types import SimpleNamespace
from typing import Any

from interlace.core.errors import Reason, ServeError
from interlace.core.request import BlsCall, CallContext
from interlace.runtime.clock import WallClock
from interlace.server.administration.model_control import ModelControlCalls
from interlace.shm.arena import ArenaMap


async def test_a_load_outlives_the_batch_that_asks_for_it() -> None:
    answers: list[ServeError | None] = []
    loaded: list[str] = []

    async def load(name: str, parameters: object, caller: str) -> None:
        await asyncio.sleep(0.2)
        loaded.append(name)

    clock = WallClock(asyncio.get_running_loop())
    api: Any = SimpleNamespace(load=load)
    calls = ModelControlCalls(api, clock, ArenaMap(os.getpid()))
    for patience_ms in (10.0, 10_000.0):
        ends_ms, context = clock.now_ms() + patience_ms, CallContext()
        call = BlsCall("m/1#0", "other", "", (), (), context, ends_ms, control="load")
        calls.take(call, answers.append)
    await asyncio.sleep(0.1)
    assert len(answers) == 1 and not loaded
    await asyncio.sleep(0.3)
    late, done = answers
    assert late is not None and late.reason is Reason.DEADLINE
    assert done is None and loaded == ["other", "other"]
