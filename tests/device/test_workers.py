"""What workers of every device keep to: short output memory, arenas that go, limits, deaths."""

import os
import signal
from collections.abc import Callable, Iterator
from contextlib import ExitStack

import numpy as np
import pytest
from msgspec.structs import replace

from interlace.core.messages import Run, WorkFinished
from interlace.core.tensor import Span, Tensor
from interlace.shm.arena import Arena
from tests.device.cpu.rig import WAIT_S, Rig, refusal, settings
from tests.device.cuda.rig import cuda_rig
from tests.device.cuda.torch_models import REAL
from tests.device.models import model
from tests.processes import alive, open_files

DOUBLE, SLOW = model("double"), model("slow")
ROW = [1.0, 2.0, 3.0, REAL]
#: Outputs of 32 rows of 4 floats take a block of 512 bytes; a page holds eight.
FULL_ROWS, PAGE = 32, 4096
MakeRig = Callable[..., Rig]


@pytest.fixture(params=["cpu", "green", "mps"])
def make_rig(request: pytest.FixtureRequest) -> Iterator[MakeRig]:
    with ExitStack() as stack:

        def make(**changes: object) -> Rig:
            cpu = request.param == "cpu"
            made = Rig(settings(**changes)) if cpu else cuda_rig(request.param, **changes)
            stack.callback(made.close)
            return made

        yield make


def full_batch(rig: Rig) -> Run:
    return rig.batch(rig.floats(DOUBLE, *[ROW] * FULL_ROWS))


def filled(rig: Rig) -> list[WorkFinished]:
    """Batches whose outputs fill the arena of one page."""
    rig.serve(DOUBLE)
    held = [rig.end_of(full_batch(rig)) for _ in range(PAGE // 512)]
    assert all(one.failure is None for one in held)
    return held


def test_a_batch_waits_for_output_memory_and_then_goes_on(make_rig: MakeRig) -> None:
    """And the time that it waits is not the worker's."""
    rig = make_rig(arena_bytes=PAGE, patience_s=WAIT_S)
    held = filled(rig)
    works = [replace(full_batch(rig), limit_ms=200.0) for _ in range(2)]
    for work in works:
        rig.do(work)
    rig.pause(0.6)
    assert not [one for one in rig.finished if one.work in works]
    for one, work in zip(held, works, strict=False):
        rig.free(one)
        rig.wait(lambda: rig.finished[-1].work is work)  # noqa: B023
        assert rig.finished[-1].failure is None


def test_a_batch_that_finds_no_memory_in_time_fails_alone(make_rig: MakeRig) -> None:
    rig = make_rig(arena_bytes=PAGE, patience_s=0.1)
    held = filled(rig)
    assert "4096 of 4096 bytes hold replies that are not delivered" in refusal(
        rig.end_of(full_batch(rig))
    )
    rig.free(held[0])
    assert rig.end_of(full_batch(rig)).failure is None


def test_workers_forget_arenas_that_the_server_forgot(make_rig: MakeRig) -> None:
    rig = make_rig()
    rig.serve(DOUBLE)
    pid = rig.device.workers()["p"]
    counts = []
    for value in range(8):
        arena = Arena.create(1 << 16)
        rig.arenas.add(arena)
        arena.view(0, 8)[:] = np.array([value, 1], np.float32).tobytes()
        given = Tensor("x", "FP32", (1, 2), Span(arena.number, 0, 8))
        finished = rig.run(rig.request(DOUBLE, given))
        assert rig.values(finished) == [[[2 * value, 2]]]
        rig.free(finished)
        rig.arenas.forget(arena.number)
        arena.close()
        rig.free(rig.run(rig.floats(DOUBLE, [1])))  # answered after what the worker was told
        counts.append(sum("interlace-arena" in link for link in open_files(pid)))
    assert counts == counts[:1] * 8


def test_what_takes_too_long_costs_the_process(make_rig: MakeRig) -> None:
    rig = make_rig()
    rig.serve(SLOW)
    pid = rig.device.workers()["p"]
    work = replace(rig.batch(rig.floats(SLOW, ROW)), limit_ms=100.0)
    failure = rig.end_of(work).failure
    assert failure is not None and failure.fatal and not failure.innocent
    words = f"killed: 'batch {work.batch.id} of slow/1#0' took longer than 0.1 s"
    assert words in failure.detail
    assert len(rig.lost) == 1 and words in rig.lost[0].detail
    rig.wait(lambda: not alive(pid))


def test_who_is_killed_from_outside_is_innocent_until_it_happens_again(make_rig: MakeRig) -> None:
    rig = make_rig()
    for attempt in (1, 1, 2):
        rig.serve(SLOW)
        run = rig.batch(rig.floats(SLOW, ROW))
        work = replace(run, batch=replace(run.batch, attempt=attempt))
        rig.do(work)
        rig.pause()
        os.kill(rig.device.workers()["p"], signal.SIGKILL)
        rig.wait(lambda: bool(rig.lost) and rig.finished[-1].work is work)  # noqa: B023
        failure = rig.finished[-1].failure
        assert failure is not None and failure.fatal
        assert failure.innocent == (attempt == 1)
        assert "SIGKILL" in rig.lost.pop().detail
    rig.serve(SLOW)
    assert rig.run(rig.floats(SLOW, ROW)).failure is None
