"""The CPU device itself: workers are born, pinned, limited, killed, and leave nothing behind."""

import gc
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from msgspec.structs import replace

from interlace.core.messages import CreatePartition, Load, ReleasePartition, WorkFinished
from interlace.core.model import ServiceTerms
from interlace.device.process.link import WorkTimeouts
from tests.device.cpu.conftest import MakeRig
from tests.device.cpu.rig import GPU, Rig, refusal
from tests.device.models import SLOW_S, WEIGHTS_BYTES, model, tensor
from tests.process_memory import process_memory
from tests.processes import alive, children
from tests.server.fakes import wait_until

DOUBLE = model("double")
SLOW = model("slow")


def test_a_worker_is_pinned_batch_scheduled_and_named(rig: Rig) -> None:
    known = model("process", outputs=(tensor("y", "FP32", 4),))
    units = rig.carve("named").units
    rig.load(known, "named")
    finished = rig.run(rig.floats(known, [0, 0, 0, 0]), name="named")
    assert rig.values(finished) == [
        [[rig.device.workers()["named"], sum(units), len("named"), os.SCHED_BATCH]]
    ]
    rig.free(finished)
    rig.release("named")


def test_threads_are_the_cores_granted(rig: Rig) -> None:
    known = model("threads")
    for share in rig.device.gpu.shares_pct:
        units = rig.carve("t", share).units
        rig.load(known, "t")
        assert rig.values(rig.run(rig.floats(known, [5]), name="t")) == [[[len(units)]]]
        rig.release("t")


def test_a_model_that_does_not_load_is_told_in_its_own_words(rig: Rig) -> None:
    rig.carve()
    failure = rig.load(model("broken")).failure
    assert failure is not None and not failure.fatal
    assert failure.detail == (
        "model broken does not load: RuntimeError: file model.bin: found nonsense"
    )
    twice = rig.load(DOUBLE).failure, rig.load(DOUBLE).failure
    assert twice[0] is None
    assert twice[1] is not None and "already loaded" in twice[1].detail
    rig.release()


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"cores": (4000,)}, "the worker could not start: OSError"),
        ({"opener": "tests.device.models:nothing"}, "AttributeError"),
    ],
)
def test_a_worker_that_cannot_start_fails_the_carve(
    make_rig: MakeRig, wrong: dict[str, object], said: str
) -> None:
    rig = make_rig(**wrong)
    for _ in range(2):  # the name is free again
        assert said in refusal(rig.carve())
    assert rig.lost == []


def test_memory_limit_is_enforced_at_load(rig: Rig) -> None:
    rig.carve()
    limit = WEIGHTS_BYTES // 2
    tight = model("heavy", terms=ServiceTerms(100.0, memory_limit_bytes=limit))
    failure = rig.load(tight).failure
    assert failure is not None and not failure.fatal
    assert "MemoryLimitError: it needs" in failure.detail
    assert f"its memory limit is {limit} bytes" in failure.detail
    before = process_memory(rig.device.workers()["p"]).anonymous_bytes
    assert before < WEIGHTS_BYTES // 2  # what was opened is gone again
    roomy = model("heavy", terms=ServiceTerms(100.0, memory_limit_bytes=WEIGHTS_BYTES * 2))
    assert rig.load(roomy).failure is None
    rig.release()


def test_unloading_gives_memory_back(rig: Rig) -> None:
    heavy = model("heavy")
    rig.carve()
    pid = rig.device.workers()["p"]
    before = process_memory(pid).rss_bytes
    loaded = rig.load(heavy)
    assert WEIGHTS_BYTES <= loaded.resident_bytes < 1.2 * WEIGHTS_BYTES
    assert process_memory(pid).rss_bytes - before > 0.9 * WEIGHTS_BYTES
    assert rig.unload(heavy).failure is None
    assert process_memory(pid).rss_bytes - before < 0.1 * WEIGHTS_BYTES
    assert rig.unload(heavy).failure is None  # gone is gone
    assert "is not loaded here" in refusal(rig.run(rig.floats(heavy, [1])))
    rig.release()


def test_weights_of_two_workers_are_one_copy(rig: Rig) -> None:
    shared = model("shared")
    for name in ("one", "two"):
        loaded = rig.carve(name), rig.load(shared, name)
        assert loaded[1].resident_bytes >= WEIGHTS_BYTES
    memories = [process_memory(pid) for pid in rig.device.workers().values()]
    assert len(memories) == 2
    assert all(memory.rss_bytes > WEIGHTS_BYTES for memory in memories)
    assert sum(memory.pss_bytes for memory in memories) < 1.5 * WEIGHTS_BYTES
    for name in ("one", "two"):
        rig.release(name)


def test_models_are_tried_at_their_batch_sizes_before_they_serve(rig: Rig) -> None:
    rig.carve()
    began = time.monotonic()
    assert rig.load(SLOW, batches=(1,)).failure is None
    assert time.monotonic() - began > 3 * SLOW_S
    assert rig.load(model("fail"), batches=(1, 8)).failure is None  # made-up inputs prove nothing
    rig.release()


def test_a_load_that_takes_too_long_costs_the_worker(make_rig: MakeRig) -> None:
    rig = make_rig(limits=WorkTimeouts(load_s=0.5))
    rig.serve(DOUBLE)
    words = "killed: 'load late/1#0' took longer than 0.5 s"
    failure = rig.load(model("late")).failure
    assert failure is not None and failure.fatal and words in failure.detail
    assert [lost.detail for lost in rig.lost] == [words]


def test_a_limit_counts_from_when_a_batch_can_begin(make_rig: MakeRig) -> None:
    rig = make_rig()
    rig.serve(SLOW)
    works = [replace(rig.batch(rig.floats(SLOW, [1])), limit_ms=1000.0) for _ in range(5)]
    for work in works:
        rig.do(work)
    rig.wait(lambda: len(rig.finished) == 7)
    assert [finished.failure for finished in rig.finished[2:]] == [None] * 5


def test_a_load_that_is_killed_from_outside_is_innocent_twice(rig: Rig) -> None:
    known = model("late")
    rig.device.register(known)
    for times in range(3):
        rig.carve()
        work = Load(rig.gpu, "p", known.key)
        rig.do(work)
        rig.pause(0.05)
        os.kill(rig.device.workers()["p"], signal.SIGKILL)
        rig.wait(lambda: bool(rig.lost) and rig.finished[-1].work is work)  # noqa: B023
        failure = rig.finished[-1].failure
        assert failure is not None and failure.fatal and failure.innocent == (times < 2)
        rig.lost.clear()


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("die", "was killed by signal 9 (SIGKILL), by the kernel for lack of memory or by hand"),
        ("crash-load", "ended with exit code 3"),
    ],
)
def test_a_death_is_told_with_its_cause(rig: Rig, name: str, words: str) -> None:
    rig.carve()
    known = model(name)
    finished = rig.load(known)
    if name == "die":
        finished = rig.run(rig.floats(known, [1]))
    assert finished.failure is not None and finished.failure.fatal
    assert finished.failure.detail == f"p: the worker process {words}"
    rig.wait(lambda: len(rig.lost) == 1)
    assert words in rig.lost.pop().detail


def test_outputs_of_a_dead_partition_stay_readable_until_freed(make_rig: MakeRig) -> None:
    rig = make_rig()
    rig.serve(DOUBLE)
    finished = rig.run(rig.floats(DOUBLE, [1, 2]))
    number = finished.outputs[0][0].span.arena
    os.kill(rig.device.workers()["p"], signal.SIGKILL)
    rig.wait(lambda: bool(rig.lost))
    assert rig.values(finished) == [[[2, 4]]]
    rig.free(finished)
    rig.free(finished)
    assert not Path(f"/proc/self/fd/{number & 0xFFFF}").exists()
    with pytest.raises(ValueError, match="is gone"):
        rig.values(finished)


def test_serving_goes_on_when_the_fork_server_dies(make_rig: MakeRig) -> None:
    before = children()
    rig = make_rig()
    rig.serve(DOUBLE)
    (server,) = children() - before
    os.kill(server, signal.SIGKILL)
    assert rig.values(rig.run(rig.floats(DOUBLE, [1]))) == [[[2]]]
    rig.wait(lambda: server not in children())
    assert rig.carve("q").failure is None  # by a new one
    os.kill(rig.device.workers()["p"], signal.SIGKILL)  # an orphan's death is seen all the same
    rig.wait(lambda: bool(rig.lost))
    assert rig.lost[0].partition == "p"


def test_a_fork_server_that_dies_first_loses_the_carve(make_rig: MakeRig) -> None:
    before = children()
    rig = make_rig()
    rig.do(CreatePartition(GPU, "p", 100))
    (server,) = children() - before
    os.kill(server, signal.SIGKILL)
    rig.wait(lambda: bool(rig.finished))
    assert rig.finished[0].failure is not None
    rig.wait(lambda: bool(rig.lost))
    assert rig.carve().failure is None


def test_signals_for_the_server_do_not_end_workers(rig: Rig) -> None:
    rig.serve(DOUBLE, "deaf")
    pid = rig.device.workers()["deaf"]
    for number in (signal.SIGINT, signal.SIGTERM):
        os.kill(pid, number)
    finished = rig.run(rig.floats(DOUBLE, [1]), name="deaf")
    assert rig.values(finished) == [[[2]]]
    rig.free(finished)
    rig.release("deaf")


def test_release_ends_the_worker_after_its_work(make_rig: MakeRig) -> None:
    rig = make_rig()
    rig.serve(SLOW)
    pid = rig.device.workers()["p"]
    run, release = rig.batch(rig.floats(SLOW, [1])), ReleasePartition(GPU, "p")
    rig.do(run)
    rig.do(release)
    late = rig.run(rig.floats(SLOW, [1]))
    assert late.failure is not None and "is being released" in late.failure.detail
    rig.wait(lambda: rig.finished[-1].work is release)
    assert [f.failure for f in rig.finished if f.work in (run, release)] == [None, None]
    assert rig.lost == []
    rig.wait(lambda: not alive(pid))


def test_nothing_is_left_after_close(make_rig: MakeRig) -> None:
    gc.collect()
    descriptors = len(os.listdir("/proc/self/fd"))
    processes = children()
    rig = make_rig()
    rig.serve(DOUBLE)
    rig.serve(SLOW, "q")
    pids = list(rig.device.workers().values())
    rig.free(rig.run(rig.floats(DOUBLE, [1])))
    busy = rig.batch(rig.floats(SLOW, [1]), name="q")
    rig.do(busy)
    rig.pause(0.05)
    ended: list[WorkFinished] = [finished for finished in rig.finished if finished.work is busy]
    assert ended == []
    rig.close()
    assert rig.finished[-1].work is busy and rig.finished[-1].failure is not None
    assert not any(alive(pid) for pid in pids)
    assert children() <= processes
    assert len(os.listdir("/proc/self/fd")) <= descriptors


def test_nobody_outlives_a_server_that_is_killed() -> None:
    code = (
        "import os, signal; from tests.device.cpu.rig import Rig, settings; "
        "from tests.device.models import model; rig = Rig(settings()); known = model('forever'); "
        "rig.serve(known); rig.do(rig.batch(rig.floats(known, [1]))); rig.pause(); "
        "print(rig.device.workers()['p'], rig.device.fork_server_pid, flush=True); "
        "os.kill(os.getpid(), signal.SIGKILL)"
    )
    root = Path(__file__).resolve().parents[3]
    process = subprocess.run(
        [sys.executable, "-c", code], cwd=root, capture_output=True, text=True, check=False
    )
    assert process.returncode == -signal.SIGKILL, process.stderr
    pids = [int(word) for word in process.stdout.split()]
    assert len(pids) == 2
    wait_until(lambda: not any(alive(pid) for pid in pids))
