"""Batches on a GPU that ends them when told: what is launched when, and what is answered."""

import gc
import os
import select
from collections.abc import Iterator

import numpy as np
import pytest

from interlace.core.model import Model
from interlace.device.cuda.backend.base import CudaBackend
from interlace.device.cuda.worker import model_cache
from interlace.device.cuda.worker.batch_runner import BatchRunner
from interlace.device.cuda.worker.context import GpuContext
from interlace.device.cuda.worker.model_cache import LoaderThread
from interlace.device.cuda.worker.partition import GpuPartition, WaitingBatch
from interlace.device.cuda.worker.wire import GpuAnswer, GpuRequest, GpuSetup
from interlace.device.process.wire import BatchResult, Column, Failed, RunBatch
from interlace.shm.arena import Arena
from tests.device.cuda.fake.capture import on
from tests.device.cuda.fake.driver import FakeDriver
from tests.device.cuda.torch_models import OPENER
from tests.device.models import model

DOUBLE = model("double")
WAIT_S = 20.0
MADE: list[FakeDriver] = []


def told(uuid: str) -> CudaBackend:
    """A GPU whose work is done when it is launched, but in streams that are held."""
    MADE.append(FakeDriver())
    return on(MADE[-1])


class Gpu:
    """One partition with a model, whose stream is held."""

    def __init__(self) -> None:
        self.inputs, self.outputs = Arena.create(1 << 16), Arena.create(1 << 16)
        setup = GpuSetup(
            "", f"{__name__}:told", "interlace.device.cuda.green_contexts.lanes:make_lanes",
            OPENER,
            os.getpid(), self.outputs.number, (self.inputs.number,), WAIT_S,
        )  # fmt: skip
        self.context = GpuContext(setup, lambda text: None)
        self.driver = MADE.pop()
        lane = self.context.lanes.carve("p", 24)
        self.partition = GpuPartition("p", lane)
        self.served = self.context.models.load(DOUBLE, "p", lane, (1, 4))
        self.answers: list[tuple[str, GpuAnswer]] = []
        self.batches = BatchRunner(
            self.context,
            {"p": self.partition},
            WAIT_S,
            lambda line, answer: self.answers.append((line, answer)),
            lambda line: None,
            lambda partition: None,
        )
        self.stream = lane.stream
        self.driver.hold(self.stream)
        self.driver.calls.clear()

    def run(self, number: int, name: str = "x", known: Model = DOUBLE, alone: bool = False) -> None:
        """Give it a batch of one row that is its number; answers are in a line of that name."""
        offset = self.inputs.alloc(16)
        assert offset is not None
        self.inputs.view(offset, 16)[:] = np.full(4, number, np.float32).tobytes()
        column = Column(name, "FP32", (1, 4), (self.inputs.number,), (offset,), (16,))
        run = RunBatch(number, known.key, (1,), (column,), (), ())
        asked = GpuRequest(str(number), "p", run, alone=alone)
        self.batches.run(self.partition, WaitingBatch(asked, run, self.served))

    def end(self) -> None:
        """The GPU ends one batch, and whoever waits for that is woken."""
        self.driver.run(self.stream, 1)
        readable, _, _ = select.select([self.context.completions.fileno()], [], [], WAIT_S)
        assert readable
        self.batches.ended()

    @property
    def launches(self) -> int:
        return self.driver.calls["launch_graph"]

    @property
    def lines(self) -> list[str]:
        return [line for line, _ in self.answers]

    def value(self, answer: GpuAnswer) -> float:
        assert isinstance(answer, BatchResult)
        found = np.frombuffer(self.outputs.view(answer.outputs[0].offset, 16), np.float32)
        return float(found[0])

    def close(self) -> None:
        self.driver.let_go(self.stream)
        self.context.lanes.release("p")
        self.context.close()
        self.inputs.close()


@pytest.fixture
def gpu() -> Iterator[Gpu]:
    made = Gpu()
    yield made
    made.close()


def test_the_next_batch_is_launched_before_the_first_has_ended_and_no_more(gpu: Gpu) -> None:
    for number in (1, 2, 3, 4):
        gpu.run(number)
    assert (gpu.launches, gpu.lines) == (2, [])
    for number in (1, 2, 3, 4):
        gpu.end()
        assert gpu.lines == [str(one) for one in range(1, number + 1)]
        assert gpu.launches == min(4, number + 2)
    assert [gpu.value(answer) for _, answer in gpu.answers] == [2.0, 4.0, 6.0, 8.0]
    assert not gpu.batches.in_flight


def test_a_batch_that_cannot_be_launched_is_answered_in_its_turn(gpu: Gpu) -> None:
    gpu.run(1)
    gpu.run(2, name="z")
    gpu.run(3)
    assert gpu.lines == []
    gpu.end()
    assert gpu.lines == ["1", "2"]
    assert isinstance(gpu.answers[1][1], Failed)
    gpu.end()
    assert gpu.lines == ["1", "2", "3"]
    assert gpu.value(gpu.answers[2][1]) == 6.0
    gpu.run(4, name="z")
    assert gpu.lines[-1] == "4"  # at once: nothing is before it


def test_a_batch_that_wants_to_be_alone_follows_nobody(gpu: Gpu) -> None:
    gpu.run(1)
    gpu.run(2, alone=True)
    gpu.run(3)
    assert gpu.launches == 1
    gpu.end()
    assert gpu.launches == 2
    gpu.end()
    assert gpu.launches == 3
    gpu.end()
    assert gpu.lines == ["1", "2", "3"]


def test_both_are_named_when_the_gpu_fails(gpu: Gpu) -> None:
    for number in (1, 2, 3):
        gpu.run(number)
    assert list(gpu.batches.lines) == ["1", "2"]
    for _ in range(3):
        gpu.end()
    assert list(gpu.batches.lines) == []


def test_times_are_those_of_the_gpu(gpu: Gpu) -> None:
    gpu.run(1)
    gpu.run(2)
    gpu.end()
    gpu.end()
    times_ns = [
        (one.began_ns, one.ended_ns) for _, one in gpu.answers if isinstance(one, BatchResult)
    ]
    (first, second) = times_ns
    assert 0 < first[0] < first[1] <= second[0] < second[1]
    for (_, one), (began_ns, ended_ns) in zip(gpu.answers, times_ns, strict=True):
        assert isinstance(one, BatchResult)
        assert one.infer_ms == pytest.approx((ended_ns - began_ns) / 1e6)


@pytest.fixture
def made() -> Iterator[LoaderThread]:
    gc.unfreeze()
    made = LoaderThread()
    yield made
    made.close()
    gc.unfreeze()


def result_of(made: LoaderThread, job: object) -> object:
    heard: list[object] = []
    made.submit(job, heard.append)  # type: ignore[arg-type]
    assert not made.idle
    assert select.select([made.fileno()], [], [], WAIT_S)[0]
    made.drain()
    assert made.idle
    (result,) = heard
    return result


def test_what_a_job_returns_or_raises_is_heard(made: LoaderThread) -> None:
    assert result_of(made, lambda: 7) == 7

    def fail() -> None:
        raise SystemExit("no")

    assert isinstance(result_of(made, fail), SystemExit)


def test_what_was_loaded_is_not_searched_again(made: LoaderThread) -> None:
    kept = result_of(made, lambda: [[one] for one in range(10_000)])
    assert isinstance(kept, list)
    # Others' frozen objects come and go with what runs beside: these are looked for themselves.
    assert not any(one is kept[5] for one in gc.get_objects())


def test_what_was_left_behind_is_found_in_the_end(
    made: LoaderThread, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(model_cache, "_THAW", 3)

    class Node:
        alive = 0

        def __init__(self) -> None:
            self.own = self
            Node.alive += 1

        def __del__(self) -> None:
            Node.alive -= 1

    kept = [result_of(made, Node)]
    kept.clear()
    gc.collect()
    assert Node.alive == 1  # a cycle, set aside
    for _ in range(2):
        result_of(made, lambda: None)
    assert Node.alive == 0
