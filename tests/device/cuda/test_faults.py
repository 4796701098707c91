"""What goes wrong on a GPU: who is told, who is blamed, who goes on, and how it comes back."""

import pytest
from msgspec.structs import replace

from interlace.core.messages import Run, WorkFinished
from tests.device.cpu.rig import Rig, refusal
from tests.device.cuda.conftest import MakeRig
from tests.device.cuda.torch_models import REAL
from tests.device.models import model

DOUBLE, SLOW, STICKY = model("double"), model("slow"), model("sticky")
ROW = [1.0, 2.0, 3.0, REAL]


def run_of(rig: Rig, known: object, name: str, attempt: int = 1) -> Run:
    run = rig.batch(rig.floats(known, ROW), name=name)  # type: ignore[arg-type]
    return replace(run, batch=replace(run.batch, attempt=attempt))


def ends_of(rig: Rig, *works: object) -> list[WorkFinished]:
    return [one for work in works for one in rig.finished if one.work is work]


def serving(rig: Rig, *placed: tuple[str, object]) -> None:
    """Partitions with a model each."""
    for name, known in placed:
        if name not in rig.device.workers():
            assert rig.carve(name).failure is None
        assert rig.load(known, name).failure is None  # type: ignore[arg-type]


def innocence(finished: list[WorkFinished]) -> list[bool]:
    failures = [one.failure for one in finished]
    assert all(failure is not None and failure.fatal for failure in failures)
    return [failure.innocent for failure in failures if failure is not None]


def test_a_failed_gpu_ends_everything_in_it_and_comes_back(make_rig: MakeRig) -> None:
    rig = make_rig()
    serving(rig, ("p", STICKY), ("q", DOUBLE))
    pid = rig.device.workers()["p"]
    held = rig.run(rig.floats(DOUBLE, ROW), name="q")
    poison = run_of(rig, STICKY, "p")
    rig.do(poison)
    rig.wait(lambda: len(rig.lost) == 2)
    assert sorted(one.partition for one in rig.lost) == ["p", "q"]
    assert all("CUDA_ERROR_ILLEGAL_ADDRESS" in one.detail for one in rig.lost)
    assert innocence(ends_of(rig, poison)) == [False]
    assert rig.values(held) == [[[2 * x for x in ROW]]]  # replies outlive the process
    rig.free(held)
    serving(rig, ("q", DOUBLE))
    assert rig.device.workers()["q"] != pid
    assert rig.values(rig.run(rig.floats(DOUBLE, ROW), name="q")) == [[[2 * x for x in ROW]]]


def test_of_several_batches_in_flight_nobody_is_blamed_until_one_fails_alone(
    make_rig: MakeRig,
) -> None:
    rig = make_rig()
    serving(rig, ("p", STICKY), ("q", SLOW), ("r", DOUBLE))
    slow, poison = run_of(rig, SLOW, "q"), run_of(rig, STICKY, "p")
    rig.do(slow)
    rig.do(poison)
    rig.wait(lambda: len(rig.lost) == 3)
    assert innocence(ends_of(rig, slow, poison)) == [True, True]

    rig.lost.clear()
    serving(rig, ("p", STICKY), ("q", SLOW))
    slow, poison = run_of(rig, SLOW, "q", attempt=2), run_of(rig, STICKY, "p", attempt=2)
    behind = run_of(rig, SLOW, "q")
    for work in (slow, poison, behind):
        rig.do(work)
    rig.wait(lambda: len(rig.lost) == 2)
    assert [one.failure for one in ends_of(rig, slow)] == [None]  # it had the GPU to itself
    assert innocence(ends_of(rig, poison, behind)) == [False, True]


def test_of_two_batches_of_one_partition_nobody_is_blamed_either(make_rig: MakeRig) -> None:
    rig = make_rig()
    serving(rig, ("p", STICKY), ("p", SLOW))
    slow, poison = run_of(rig, SLOW, "p"), run_of(rig, STICKY, "p")
    waiting = run_of(rig, SLOW, "p")
    for work in (slow, poison, waiting):
        rig.do(work)
    rig.wait(lambda: len(rig.lost) == 1)
    ends = ends_of(rig, slow, poison, waiting)
    assert len(ends) == 3
    assert ends[0].failure is None or ends[0].failure.innocent
    assert innocence(ends[1:])[1]  # it was not on the GPU, or behind the cause


def test_batches_that_run_alone_hold_up_nobody_for_long(make_rig: MakeRig) -> None:
    rig = make_rig()
    serving(rig, ("p", SLOW), ("q", DOUBLE), ("r", DOUBLE))
    works = [run_of(rig, SLOW, "p")]
    works += [run_of(rig, DOUBLE, name, attempt) for attempt in (1, 2, 1) for name in ("q", "r")]
    works.append(run_of(rig, SLOW, "p", attempt=2))
    for work in works:
        rig.do(work)
    rig.wait(lambda: len(ends_of(rig, *works)) == len(works))
    assert [one.failure for one in ends_of(rig, *works)] == [None] * len(works)
    order = [one.work for one in rig.finished if one.work in works]
    assert order.index(works[3]) > order.index(works[0])  # the first of those alone came after


def test_a_process_that_a_capture_wore_out_is_started_anew_when_it_is_empty(
    make_rig: MakeRig, caplog: pytest.LogCaptureFixture
) -> None:
    rig = make_rig(backend="tests.device.cuda.backends:void")
    serving(rig, ("p", DOUBLE), ("q", DOUBLE))
    pid = rig.device.workers()["p"]
    assert any("captured again" in line and "INVALIDATED" in line for line in caplog.messages)
    assert rig.release("p").failure is None
    assert rig.values(rig.run(rig.floats(DOUBLE, ROW), name="q")) == [[[2 * x for x in ROW]]]
    assert rig.release("q").failure is None
    assert rig.device.workers() == {} and rig.lost == []
    serving(rig, ("p", DOUBLE))
    assert rig.device.workers()["p"] != pid
    assert rig.values(rig.run(rig.floats(DOUBLE, ROW))) == [[[2 * x for x in ROW]]]
    assert any("started anew" in line for line in caplog.messages)


def test_a_fault_under_mps_takes_all_clients_along(make_rig: MakeRig) -> None:
    rig = make_rig("mps")
    serving(rig, ("p", STICKY), ("q", SLOW))
    poison, beside = run_of(rig, STICKY, "p"), run_of(rig, SLOW, "q")
    rig.do(beside)
    rig.do(poison)
    rig.wait(lambda: len(rig.lost) == 2)
    assert innocence(ends_of(rig, poison)) == [False]
    assert [one.failure is None or one.failure.innocent for one in ends_of(rig, beside)] == [True]
    serving(rig, ("p", STICKY), ("q", SLOW))


def test_memory_that_is_not_there_is_told_with_what_was_needed(make_rig: MakeRig) -> None:
    rig = make_rig(backend="tests.device.cuda.backends:small")
    serving(rig, ("p", DOUBLE))
    for _ in range(2):  # nothing of the first try stays behind
        failure = rig.load(model("heavy")).failure
        assert failure is not None and not failure.fatal
        assert "on the GPU" in failure.detail and "of 16.0 MiB" in failure.detail
    assert rig.run(rig.floats(DOUBLE, ROW)).failure is None


def test_no_gpu_fails_the_carve_and_is_no_loss(make_rig: MakeRig) -> None:
    rig = make_rig(backend="tests.device.cuda.backends:absent")
    for _ in range(2):
        assert "CUDA_ERROR_NO_DEVICE" in refusal(rig.carve())
    rig.pause()
    assert rig.lost == []
