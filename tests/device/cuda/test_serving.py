"""What partitions of one process share and what they do not: memory, weights, order, inputs."""

from pathlib import Path
from typing import Any

import pytest

from interlace.core.messages import CopyInputs, Run
from interlace.core.request import Batch
from interlace.device.cuda.worker.wire import GpuRequest, StageInputs
from tests.device.cpu.rig import Rig
from tests.device.cuda.conftest import MakeRig
from tests.device.cuda.torch_models import REAL
from tests.device.models import model

DOUBLE, SLOW = model("double"), model("slow")
ROW = [1.0, 2.0, 3.0, REAL]
TWICE = [2.0, 4.0, 6.0, 2 * REAL]


def ended(rig: Rig, work: object) -> bool:
    return any(one.work is work for one in rig.finished)


def two(rig: Rig) -> None:
    for name in ("p", "q"):
        rig.serve(DOUBLE, name)


def test_shapes_without_a_graph_run_behind_each_other_too(make_rig: MakeRig) -> None:
    rig = make_rig()
    two(rig)
    works = [rig.batch(rig.floats(DOUBLE, *[[n, 1, 0][: 2 + n % 2]] * 2)) for n in range(8)]
    for work in works:
        rig.do(work)
    rig.wait(lambda: ended(rig, works[-1]))
    done = [one for one in rig.finished if isinstance(one.work, Run)]
    wanted = [[[[2.0 * n, 2, 0][: 2 + n % 2]] * 2] for n in range(8)]
    assert [rig.values(one) for one in done] == wanted


def test_weights_stay_while_one_partition_has_the_model_and_a_next_one_has_it_at_once(
    make_rig: MakeRig, caplog: pytest.LogCaptureFixture
) -> None:
    rig = make_rig()
    two(rig)
    assert rig.unload(DOUBLE, "p").failure is None
    assert rig.values(rig.run(rig.floats(DOUBLE, ROW), name="q")) == [[TWICE]]
    failure = rig.run(rig.floats(DOUBLE, ROW)).failure
    assert failure is not None and "is not loaded here" in failure.detail
    assert rig.load(DOUBLE, "p").failure is None
    assert rig.release("q").failure is None
    assert rig.unload(DOUBLE, "p").failure is None
    rig.wait(lambda: sum("unloaded" in line for line in caplog.messages) == 1)
    assert sum(" loaded" in line for line in caplog.messages) == 1
    (unloaded,) = [line for line in caplog.messages if "unloaded" in line]
    assert "81920.0 MiB free after" in unloaded  # all that there is


def test_what_is_staged_in_one_turn_of_the_loop_goes_in_one_frame(make_rig: MakeRig) -> None:
    rig = make_rig()
    two(rig)
    (process,) = rig.device.processes.running
    frames: list[StageInputs] = []
    ask = process.link.ask

    def count(frame: Any, question: Any, line: str = "") -> bool:
        if isinstance(frame, GpuRequest) and isinstance(frame.what, StageInputs):
            frames.append(frame.what)
        return bool(ask(frame, question, line))

    process.link.ask = count
    requests = [rig.floats(DOUBLE, [n, 1, 2, 3]) for n in range(300)]
    good = [CopyInputs(rig.gpu, request, n, 512) for n, request in enumerate(requests)]
    nowhere = CopyInputs(rig.gpu, rig.floats(DOUBLE, ROW), 512, 512)
    works = [*good[:10], nowhere, *good[10:]]
    for work in works:
        rig.do(work)
    rig.wait(lambda: ended(rig, works[-1]))
    assert [len(frame.requests) for frame in frames] == [128, 128, 45]
    done = [one for one in rig.finished if isinstance(one.work, CopyInputs)]
    assert [one.work for one in done] == works
    failures = {one.work.slot: one.failure for one in done}
    failure = failures.pop(512)
    assert failure is not None and "slot 512 for 1 rows in 512 slots" in failure.detail
    assert set(failures.values()) == {None}
    batch = Batch(900, DOUBLE.key, tuple(requests[5:37]), 32, slot=5)
    assert rig.values(rig.end_of(Run(rig.gpu, "q", batch))) == [
        [[2.0 * n, 2, 4, 6]] for n in range(5, 37)
    ]


def test_what_waits_to_be_staged_is_answered_once_when_the_process_dies(make_rig: MakeRig) -> None:
    rig = make_rig()
    two(rig)
    stages = [CopyInputs(rig.gpu, rig.floats(DOUBLE, ROW), n, 8) for n in range(3)]
    rig.do(stages[0])
    rig.pause(0.05)
    for stage in stages[1:]:
        rig.do(stage)
    (process,) = rig.device.processes.running
    process.link.kill("for a test")
    rig.wait(lambda: len(rig.lost) == 2 and all(ended(rig, stage) for stage in stages))
    rig.pause(0.05)
    assert [one.work for one in rig.finished if isinstance(one.work, CopyInputs)] == stages


def test_of_many_processes_few_watch_with_a_core_each(make_rig: MakeRig) -> None:
    rig = make_rig("mps")
    names = [f"p{n}" for n in range(6)]
    for name in names:
        assert rig.carve(name).failure is None
    rests_us = {name: rig.device.processes.of(name).rest_us for name in names}
    assert list(rests_us.values()) == [0, 0, 0, 0, 20, 20]
    for name in (names[0], names[-1]):  # who rests serves as well
        assert rig.load(DOUBLE, name).failure is None
        for _ in range(3):
            assert rig.values(rig.run(rig.floats(DOUBLE, ROW), name=name)) == [[TWICE]]
    assert _slack_ns(rig.device.workers()["p5"]) == 1000
    assert rig.release("p1").failure is None
    assert rig.carve("q").failure is None
    assert rig.device.processes.of("q").rest_us == 0


def _slack_ns(pid: int) -> int:
    return int(Path(f"/proc/{pid}/timerslack_ns").read_text())


@pytest.mark.parametrize("mechanism", ["green", "streams", "mps", "mig"])
def test_a_process_gives_everything_back(make_rig: MakeRig, mechanism: str) -> None:
    rig = make_rig(mechanism)
    assert rig.carve(share_pct=rig.device.gpu.shares_pct[-1]).failure is None
    for known in (DOUBLE, SLOW):
        assert rig.load(known).failure is None
    rig.free(rig.run(rig.floats(DOUBLE, ROW)))
    rig.device.close()
    # The fake driver ends its process with an error if anything is left over or was misused.
    assert {process.wait() for process in rig.device.processes.launcher.begun} == {0}
