"""Weights once on a GPU under MPS: kept by one process, read by every partition's own."""

import os
import signal
from collections.abc import Callable, Iterator

import pytest

from tests.device.cpu.rig import Rig
from tests.device.cuda.rig import cuda_rig
from tests.device.cuda.torch_models import WEIGHT_FLOATS
from tests.device.models import model

HEAVY, DOUBLE = model("heavy"), model("double")
ROW, TWICE = [1.0, 2.0, 3.0, 4.0], [2.0, 4.0, 6.0, 8.0]


Logged = Callable[[str], list[str]]


@pytest.fixture
def logged(caplog: pytest.LogCaptureFixture) -> Logged:
    """The messages that hold given words."""
    return lambda words: [line for line in caplog.messages if words in line]


@pytest.fixture
def rig() -> Iterator[Rig]:
    made = cuda_rig("mps")
    yield made
    made.close()


def keeper(rig: Rig) -> int:
    """Process id of the one that was started first."""
    pid: int = rig.device.processes.launcher.begun[0].pid
    return pid


def test_weights_are_held_once_and_read_by_all(rig: Rig, logged: Logged) -> None:
    held = []
    for name in ("p", "q"):
        assert rig.carve(name).failure is None
        held.append(rig.load(HEAVY, name).resident_bytes)
        assert rig.values(rig.run(rig.floats(HEAVY, ROW), name=name)) == [[TWICE]]
    graphs_bytes = 8 << 20  # eight batch sizes of a MiB each: those are every process's own
    assert all(graphs_bytes <= one < graphs_bytes + 4 * WEIGHT_FLOATS for one in held)
    assert logged("not shared") == []
    # One graph (1 MiB), the weights (4 MiB) and a place for one row, in the keeper alone.
    (line,) = logged("graphs of 1 rows")
    assert "81915.0 MiB free after" in line


def test_weights_go_when_the_last_partition_lets_go_of_them(rig: Rig, logged: Logged) -> None:
    for name in ("p", "q"):
        assert rig.carve(name).failure is None
        assert rig.load(HEAVY, name).failure is None
    assert rig.unload(HEAVY, "p").failure is None
    assert rig.values(rig.run(rig.floats(HEAVY, ROW), name="q")) == [[TWICE]]
    assert rig.release("q").failure is None  # the process ends, and its claim with it
    rig.wait(lambda: len(logged("81920.0 MiB free after")) >= 2)
    assert rig.load(HEAVY, "p").failure is None
    assert rig.values(rig.run(rig.floats(HEAVY, ROW))) == [[TWICE]]


def test_weights_stay_with_their_keeper_where_that_is_asked_for(logged: Logged) -> None:
    rig = cuda_rig("mps", keep_bytes=1 << 30)
    try:
        for name in ("p", "q"):  # one after the other, a process each
            assert rig.carve(name).failure is None
            assert rig.load(HEAVY, name).failure is None
            assert rig.values(rig.run(rig.floats(HEAVY, ROW), name=name)) == [[TWICE]]
            assert rig.release(name).failure is None
        assert len(logged("graphs of 1 rows")) == 1
    finally:
        rig.close()


def test_a_borrower_that_dies_leaves_the_weights_to_others(rig: Rig) -> None:
    for name in ("p", "q"):
        assert rig.carve(name).failure is None
        assert rig.load(HEAVY, name).failure is None
    os.kill(rig.device.workers()["p"], signal.SIGKILL)
    rig.wait(lambda: bool(rig.lost))
    assert rig.values(rig.run(rig.floats(HEAVY, ROW), name="q")) == [[TWICE]]
    assert [one.partition for one in rig.lost] == ["p"]


def test_a_keeper_that_dies_takes_its_borrowers_along_and_all_come_back(rig: Rig) -> None:
    for name in ("p", "q"):
        assert rig.carve(name).failure is None
        assert rig.load(HEAVY, name).failure is None
    os.kill(keeper(rig), signal.SIGKILL)
    rig.wait(lambda: len(rig.lost) == 2)
    assert sorted(one.partition for one in rig.lost) == ["p", "q"]
    assert rig.carve("p").failure is None
    assert rig.load(HEAVY, "p").failure is None
    assert rig.values(rig.run(rig.floats(HEAVY, ROW))) == [[TWICE]]


def test_a_model_that_does_not_open_is_told_by_the_partition_itself(rig: Rig) -> None:
    assert rig.carve("p").failure is None
    failure = rig.load(model("broken")).failure
    assert failure is not None and "found nonsense" in failure.detail
    assert rig.load(DOUBLE).failure is None
    assert rig.values(rig.run(rig.floats(DOUBLE, ROW))) == [[TWICE]]
