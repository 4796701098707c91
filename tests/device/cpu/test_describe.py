"""Models described by a process of their own: what they say, why they do not load, in time."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

import pytest

from interlace.core.errors import Reason, ServeError
from interlace.core.model import Model
from interlace.device.cpu.describe import Description
from tests.device.cpu.conftest import MakeRig
from tests.device.cpu.rig import Rig
from tests.device.cpu.test_device import children
from tests.device.models import WEIGHTS_BYTES, model


def describe(rig: Rig, known: Model, limit_s: float = 30.0) -> Description:
    return rig.loop.run_until_complete(rig.device.describe(known, limit_s))


def error_of(rig: Rig, known: Model, limit_s: float = 30.0) -> str:
    with pytest.raises(ServeError) as caught:
        describe(rig, known, limit_s)
    assert caught.value.reason is Reason.BACKEND
    return caught.value.detail


def test_a_model_describes_itself(rig: Rig) -> None:
    known = model("shared")
    described = describe(rig, known)
    assert described.signature == known.signature
    assert described.weights_bytes == WEIGHTS_BYTES
    assert described.resident_bytes >= WEIGHTS_BYTES


def test_why_it_does_not_load(rig: Rig) -> None:
    assert error_of(rig, model("broken")) == (
        "model broken does not load: RuntimeError: file model.bin: found nonsense"
    )
    assert error_of(rig, model("crash-load")) == (
        "describe: the worker process ended with exit code 3"
    )


def test_a_model_that_takes_too_long(rig: Rig) -> None:
    assert "'load late/1#0' took longer than 0.5 s" in error_of(rig, model("late"), 0.5)


def test_several_at_once(rig: Rig) -> None:
    async def all_at_once() -> list[Description | BaseException]:
        names = ("double", "broken", "identity")
        waits: list[Coroutine[Any, Any, Description]] = [
            rig.device.describe(model(name)) for name in names
        ]
        return list(await asyncio.gather(*waits, return_exceptions=True))

    first, second, third = rig.loop.run_until_complete(all_at_once())
    assert isinstance(first, Description) and isinstance(third, Description)
    assert isinstance(second, ServeError)


def test_giving_up_ends_the_process(make_rig: MakeRig) -> None:
    rig = make_rig()

    async def give_up() -> None:
        async with asyncio.timeout(0.5):
            await rig.device.describe(model("late"))

    with pytest.raises(TimeoutError):
        rig.loop.run_until_complete(give_up())
    assert rig.device.workers() == {}


def test_closing_the_device_ends_it_too(make_rig: MakeRig) -> None:
    before = children()
    rig = make_rig()

    async def close_meanwhile() -> None:
        waiting = asyncio.ensure_future(rig.device.describe(model("late")))
        await asyncio.sleep(0.3)
        rig.device.close()
        with pytest.raises(ServeError, match="the device is closed"):
            await waiting

    rig.loop.run_until_complete(close_meanwhile())
    assert children() == before
