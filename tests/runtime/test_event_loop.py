"""A loop whose threads hold nobody, and do their work else."""

import asyncio
import subprocess
import sys
import threading
from concurrent.futures import Future

from interlace.runtime.event_loop import DaemonThreads, run_loop

_HANGS = """
import asyncio, threading
from interlace.runtime.event_loop import run_loop
async def main():
    asyncio.ensure_future(asyncio.to_thread(threading.Event().wait))
    await asyncio.sleep(0.2)
    print("the end", flush=True)
run_loop(main())
"""


def test_a_call_that_never_ends_does_not_hold_the_process() -> None:
    done = subprocess.run(
        [sys.executable, "-c", _HANGS], capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout == "the end\n"


def test_calls_end_with_what_they_return_or_raise() -> None:
    async def main() -> list[object]:
        calls = [asyncio.to_thread(divmod, one, one % 3) for one in range(100)]
        return await asyncio.gather(*calls, return_exceptions=True)

    found = run_loop(main())
    for one, got in enumerate(found):
        if one % 3:
            assert got == divmod(one, one % 3)
        else:
            assert isinstance(got, ZeroDivisionError)


def test_more_calls_than_threads_wait_for_one() -> None:
    pool, enough, running = DaemonThreads(), threading.Event(), threading.Semaphore(0)

    def call() -> int:
        running.release()
        enough.wait()
        return 7

    waiting = [pool.submit(call) for _ in range(40)]
    for _ in range(32):
        assert running.acquire(timeout=30)
    assert not running.acquire(timeout=0.1)
    last: Future[int] = pool.submit(call)
    assert last.cancel()
    enough.set()
    assert [one.result(timeout=30) for one in waiting] == [7] * 40
    pool.shutdown()

    assert last.cancelled()
