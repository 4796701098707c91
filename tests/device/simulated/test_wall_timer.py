"""Timers of simulated devices in real time."""

import asyncio
from collections.abc import Callable

import uvloop

from interlace.device.simulated.answers import WallTimer


def play(script: Callable[[WallTimer], None], done: Callable[[], bool]) -> None:
    async def run() -> None:
        timer = WallTimer(asyncio.get_running_loop())
        script(timer)
        async with asyncio.timeout(30.0):
            while not done():
                await asyncio.sleep(0.01)
        timer.close()
        timer.close()

    uvloop.run(run())


def test_no_call_is_early_and_all_come_in_order() -> None:
    seen: list[tuple[float, float]] = []

    def script(timer: WallTimer) -> None:
        start_ms = timer.now_ms()
        for step in (31, 7, 30.25, 7.5, 0, -5, 7.25):
            at_ms = start_ms + step
            timer.call_at(at_ms, lambda at_ms=at_ms: seen.append((at_ms, timer.now_ms())))
        assert not seen

    play(script, lambda: len(seen) == 7)
    assert [at_ms for at_ms, _ in seen] == sorted(at_ms for at_ms, _ in seen)
    assert all(now_ms >= at_ms for at_ms, now_ms in seen)


def test_equal_times_go_by_order_of_asking_and_calls_may_ask_for_more() -> None:
    seen: list[str] = []

    def script(timer: WallTimer) -> None:
        at_ms = timer.now_ms() + 2.0
        for name in "abc":
            timer.call_at(at_ms, lambda name=name: seen.append(name))
        timer.call_at(at_ms, lambda: timer.call_at(timer.now_ms(), lambda: seen.append("d")))

    play(script, lambda: "d" in seen)
    assert seen == ["a", "b", "c", "d"]


def test_a_call_that_raises_keeps_no_other_from_coming() -> None:
    seen: list[str] = []
    told: list[object] = []

    async def run() -> None:
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(lambda _, context: told.append(context["exception"]))
        timer = WallTimer(loop)
        timer.call_at(timer.now_ms() + 1.0, lambda: 1 // 0)
        called = asyncio.Event()

        def later() -> None:
            seen.append("later")
            called.set()

        timer.call_at(timer.now_ms() + 5.0, later)
        async with asyncio.timeout(30.0):
            await called.wait()
        timer.close()

    uvloop.run(run())
    assert seen == ["later"] and isinstance(told[0], ZeroDivisionError)


def test_after_its_end_nothing_is_called() -> None:
    seen: list[str] = []

    def script(timer: WallTimer) -> None:
        timer.call_at(timer.now_ms() + 5.0, lambda: seen.append("x"))
        timer.close()
        timer.call_at(timer.now_ms(), lambda: seen.append("y"))
        other = WallTimer(asyncio.get_running_loop())
        other.call_at(timer.now_ms() + 10.0, lambda: seen.append("other"))

    play(script, lambda: bool(seen))
    assert seen == ["other"]
