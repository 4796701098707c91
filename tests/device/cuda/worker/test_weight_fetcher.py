"""Two loads on the link at a time; each is answered once, whatever becomes of it."""

import os
import signal
from collections.abc import Callable, Iterator

import pytest

from interlace.device.cuda.driver.flag_poller import FlagPoller
from interlace.device.cuda.worker.weight_fetcher import Answers, WeightFetcher
from interlace.device.cuda.worker.wire import FetchWeights, WeightsMoved
from interlace.device.process.wire import EvictWeights, Failed
from tests.device.cpu.rig import Rig
from tests.device.cuda.conftest import MakeRig
from tests.device.cuda.models.cold_rig import ALL, FIRST, WEIGHTED, Stand
from tests.device.cuda.torch_models import WEIGHT_FLOATS
from tests.device.models import model

LANE = 9
COUNT = len(ALL)


class Worker:
    """The part of the main loop that weights concern."""

    def __init__(self) -> None:
        self.stand = Stand()
        driver, backend = self.stand.driver, self.stand.gpu.backend
        self.completions = FlagPoller(driver, LANE + 1)
        mapped = self.stand.gpu.memory
        self.fetcher = WeightFetcher(driver, backend.kernels, mapped, self.completions, LANE)
        self.answers: list[tuple[str, object]] = []
        for seed in (1, 2, 3):
            self.stand.load(seed)

    def fetch(self, seed: int, layers: tuple[int, ...] = tuple(ALL), count: int = COUNT) -> None:
        asked = FetchWeights(f"net{seed}", layers, (0,) * len(layers), count)
        self.hear(self.fetcher.fetch(f"line{seed}", self.stand.models[seed].cold, asked))

    def hear(self, answers: Answers) -> None:
        self.answers += answers

    def wait(self, count: int) -> None:
        while len(self.answers) < count:
            for lane, sequence in self.completions.drain():
                assert lane == LANE
                self.hear(self.fetcher.ended(sequence))

    def held(self, seed: int) -> set[int]:
        cold = self.stand.models[seed].cold
        assert cold is not None
        return set(cold.held)


@pytest.fixture
def worker() -> Iterator[Worker]:
    made = Worker()
    yield made
    made.completions.close()
    made.fetcher.close()
    made.stand.close()


def test_two_at_a_time_the_third_behind_them(worker: Worker) -> None:
    link = worker.stand.memory.link
    worker.stand.driver.hold(link)
    for seed in (1, 2, 3):
        worker.fetch(seed)
    assert sorted(worker.fetcher.lines) == ["line1", "line2"] and not worker.answers
    assert worker.held(1) == worker.held(2) == WEIGHTED and not worker.held(3)
    worker.stand.driver.let_go(link)
    worker.wait(3)
    assert [line for line, _ in worker.answers] == ["line1", "line2", "line3"]
    assert all(isinstance(one, WeightsMoved) for _, one in worker.answers)
    assert worker.held(3) == WEIGHTED and worker.stand.runs(3)


def test_what_waits_is_cancelled_and_what_is_on_its_way_ends_well(worker: Worker) -> None:
    link = worker.stand.memory.link
    worker.stand.driver.hold(link)
    for seed in (1, 2, 3):
        worker.fetch(seed)
    for seed in (1, 3):
        worker.hear(worker.fetcher.cancel(f"net{seed}"))
    ((line, refused),) = worker.answers
    assert line == "line3" and isinstance(refused, Failed) and "cancelled" in refused.detail
    worker.stand.driver.let_go(link)
    worker.wait(3)
    assert not worker.held(3) and worker.held(1) == WEIGHTED


def test_a_copy_that_is_refused_fails_that_fetch_alone(worker: Worker) -> None:
    worker.stand.driver.fail("copy", "CUDA_ERROR_INVALID_VALUE", skip=1)
    worker.fetch(1)
    worker.fetch(2)
    worker.wait(2)
    assert isinstance(dict(worker.answers)["line1"], Failed) and not worker.held(1)
    assert isinstance(dict(worker.answers)["line2"], WeightsMoved)
    assert worker.stand.runs(1) and worker.stand.runs(2)


def test_eviction_gives_back_what_was_brought_and_forgetting_all_of_it(worker: Worker) -> None:
    worker.fetch(1)
    worker.wait(1)
    cold = worker.stand.models[1].cold
    assert isinstance(worker.fetcher.evict(cold, EvictWeights("net1", (FIRST,))), WeightsMoved)
    assert worker.held(1) == WEIGHTED - {FIRST}
    worker.fetcher.forget("net1", cold)
    assert not worker.held(1) and not worker.stand.memory.used_bytes
    assert worker.stand.runs(1)


@pytest.mark.parametrize(("layers", "count"), [((1,), 5), ((7,), COUNT), ((-1,), COUNT)])
def test_layers_that_it_does_not_have_are_refused(
    worker: Worker, layers: tuple[int, ...], count: int
) -> None:
    worker.fetch(1, layers, count)
    ((_, refused),) = worker.answers
    assert isinstance(refused, Failed) and "measure it" in refused.detail


HEAVY, DOUBLE = model("heavy"), model("double")
ROW, TWICE = [1.0, 2.0, 3.0, 4.0], [2.0, 4.0, 6.0, 8.0]


Logged = Callable[[str], list[str]]


@pytest.fixture
def logged(caplog: pytest.LogCaptureFixture) -> Logged:
    """The messages that hold given words."""
    return lambda words: [line for line in caplog.messages if words in line]


@pytest.fixture
def rig(make_rig: MakeRig) -> Rig:
    return make_rig("mps")


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
        rig.serve(HEAVY, name)
    assert rig.unload(HEAVY, "p").failure is None
    assert rig.values(rig.run(rig.floats(HEAVY, ROW), name="q")) == [[TWICE]]
    assert rig.release("q").failure is None  # the process ends, and its claim with it
    rig.wait(lambda: len(logged("81920.0 MiB free after")) >= 2)
    assert rig.load(HEAVY, "p").failure is None
    assert rig.values(rig.run(rig.floats(HEAVY, ROW))) == [[TWICE]]


def test_weights_stay_with_their_keeper_where_that_is_asked_for(
    make_rig: MakeRig, logged: Logged
) -> None:
    rig = make_rig("mps", keep_bytes=1 << 30)
    for name in ("p", "q"):  # one after the other, a process each
        rig.serve(HEAVY, name)
        assert rig.values(rig.run(rig.floats(HEAVY, ROW), name=name)) == [[TWICE]]
        assert rig.release(name).failure is None
    assert len(logged("graphs of 1 rows")) == 1


def test_a_borrower_that_dies_leaves_the_weights_to_others(rig: Rig) -> None:
    for name in ("p", "q"):
        rig.serve(HEAVY, name)
    os.kill(rig.device.workers()["p"], signal.SIGKILL)
    rig.wait(lambda: bool(rig.lost))
    assert rig.values(rig.run(rig.floats(HEAVY, ROW), name="q")) == [[TWICE]]
    assert [one.partition for one in rig.lost] == ["p"]


def test_a_keeper_that_dies_takes_its_borrowers_along_and_all_come_back(rig: Rig) -> None:
    for name in ("p", "q"):
        rig.serve(HEAVY, name)
    os.kill(keeper(rig), signal.SIGKILL)
    rig.wait(lambda: len(rig.lost) == 2)
    assert sorted(one.partition for one in rig.lost) == ["p", "q"]
    rig.serve(HEAVY)
    assert rig.values(rig.run(rig.floats(HEAVY, ROW))) == [[TWICE]]


def test_a_model_that_does_not_open_is_told_by_the_partition_itself(rig: Rig) -> None:
    assert rig.carve("p").failure is None
    failure = rig.load(model("broken")).failure
    assert failure is not None and "found nonsense" in failure.detail
    assert rig.load(DOUBLE).failure is None
    assert rig.values(rig.run(rig.floats(DOUBLE, ROW))) == [[TWICE]]
