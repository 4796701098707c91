"""Weights that come and go under a model: nothing reads them before they are there.

With torch and with onnxruntime; memory is given back.
"""

import mmap
import os
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from queue import SimpleQueue
from threading import Event, current_thread
from time import sleep
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from interlace.core.model import Format
from interlace.formats import onnx_sharing, open_model
from interlace.formats.cold_weights import ColdWeights, weight_uses
from interlace.formats.onnx import OnnxRunner
from interlace.formats.onnx_layout import GRAPH
from interlace.formats.onnx_sharing import open_optimised
from interlace.formats.page_cache import cached_part, drop_cached, map_file
from interlace.formats.runner import ArrivingWeights, WeightUse
from interlace.formats.session_weights import SessionWeights, mapped_pieces
from interlace.formats.weights_file import WeightsFile, write_weights
from tests.formats.making import a_model, layers_onnx
from tests.process_memory import process_memory

ROWS = torch.arange(6).view(2, 3) % 5
SIZES = (256, 640, 640, 640, 256, 256)
X = {"x": np.random.default_rng(1).standard_normal((3, SIZES[0]), np.float32)}
#: Of both models.
ALL = range(5)


class Net(nn.Module):
    """A table, layers made in another order than they run, one that is never run, a tied weight."""

    def __init__(self) -> None:
        super().__init__()
        self.last = nn.Linear(8, 2)
        self.idle = nn.Linear(8, 8)
        self.first = nn.Linear(8, 8)
        self.table = nn.Embedding(5, 8)
        self.norm = nn.BatchNorm1d(3)
        self.again = nn.Linear(8, 8, bias=False)
        self.again.weight = self.first.weight

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = self.last(self.again(self.norm(self.first(self.table(rows)))))
        return y


class Slow(WeightsFile):
    """A link that every layer takes a while on."""

    def read(self, index: int, memory: memoryview, at: int) -> None:
        sleep(0.005)
        super().read(index, memory, at)


class Stand:
    """A model with its weights in a file, and memory to bring them to."""

    def __init__(self, file: Any, cold: Any, run: Callable[[], np.ndarray[Any, Any]]) -> None:
        self.file, self.cold, self.run = file, cold, run
        self.wanted = run().copy()
        self.memory = memoryview(mmap.mmap(-1, file.nbytes + mmap.PAGESIZE))
        self.ended: SimpleQueue[str] = SimpleQueue()
        self.poison()

    def poison(self) -> None:
        """What no weights are (NaN), to be sure that none is read early."""
        self.memory[:] = b"\xff" * len(self.memory)

    def places(self, indices: Iterable[int]) -> dict[int, int]:
        return {index: mmap.PAGESIZE + self.file.extents[index].begin for index in indices}

    def fetch(self, indices: Iterable[int] = ALL) -> None:
        self.cold.fetch(self.places(indices), self.memory, self.ended.put)

    def right(self) -> bool:
        return np.array_equal(self.run(), self.wanted)


@pytest.fixture
def net(tmp_path: Path) -> Iterator[Stand]:
    """Modules of torch."""
    with torch.inference_mode():
        module, path = Net().eval(), tmp_path / "net.weights"
        weights = dict(module.named_parameters()) | dict(module.named_buffers())
        write_weights(path, weights, weight_uses(weights, lambda: module(ROWS)))
        file = Slow(path)
        cold = ColdWeights(file, weights)

        def run() -> np.ndarray[Any, Any]:
            with cold.arrivals():
                answer: np.ndarray[Any, Any] = module(ROWS).numpy()
            return answer

        yield Stand(file, cold, run)
        cold.close()


@pytest.fixture
def runner(tmp_path: Path) -> Iterator[OnnxRunner]:
    model = a_model(Format.ONNX, layers_onnx(tmp_path / "net", SIZES))
    made = open_model(model, 1, str(tmp_path / "weights"))
    assert isinstance(made, OnnxRunner)
    yield made
    made.close()


@pytest.fixture
def session(runner: OnnxRunner) -> Stand:
    """A session of onnxruntime."""
    assert runner.cold is not None
    return Stand(runner.cold.file, runner.cold, lambda: runner.run(X)["r4"])


@pytest.fixture(params=["net", "session"])
def stand(request: pytest.FixtureRequest) -> Stand:
    made: Stand = request.getfixturevalue(request.param)
    return made


@pytest.mark.parametrize("pattern", range(0, 32, 3))
def test_answers_are_the_warm_ones_whatever_is_copied(pattern: int, stand: Stand) -> None:
    copied = [index for index in ALL if pattern >> index & 1]
    for _ in range(3):
        stand.cold.leave(ALL)
        stand.poison()
        stand.file.forget()
        stand.fetch(copied)
        assert stand.right()
        while stand.ended.empty():
            assert stand.right()  # while they come
        assert stand.ended.get() == ""
    assert stand.right()  # warm from now on


def test_what_is_placed_is_what_is_read(stand: Stand) -> None:
    """The test above could not pass by chance: poison where weights should be spoils the answer."""
    stand.cold.place(stand.places(ALL), stand.memory)
    assert np.isnan(stand.run()).all()
    for index, at in stand.places(ALL).items():
        stand.file.read(index, stand.memory, at)
    assert stand.right()
    stand.poison()
    stand.cold.leave(ALL)
    assert stand.right()


def test_a_fetch_that_fails_or_is_cancelled_leaves_the_file(stand: Stand) -> None:
    content = stand.file.path.read_bytes()
    os.truncate(stand.file.path, stand.file.extents[2].begin)
    stand.fetch()
    assert "it ends at" in stand.ended.get()
    with stand.file.path.open("r+b") as again:
        again.write(content)
    for _ in range(10):
        stand.cold.leave(ALL)
        stand.poison()
        assert stand.right()
        stand.fetch()
        stand.cold.cancel()
        assert stand.ended.get() in ("", "cancelled")


def test_a_file_that_cannot_be_read_is_an_error_and_not_an_answer(net: Stand) -> None:
    os.truncate(net.file.path, net.file.nbytes // 4)
    net.fetch()
    with pytest.raises(OSError, match="it ends at"):
        net.run()
    assert "it ends at" in net.ended.get()


def test_uses_are_those_of_an_execution_in_its_order(net: Stand, session: Stand) -> None:
    operators = [use.operator for use in net.file.uses]
    assert operators == ["embedding", "linear", "batch_norm", "linear", ""]
    assert [use.weights for use in session.file.uses] == [(f"w{n}",) for n in ALL]
    assert {use.operator for use in session.file.uses} == {"MatMul"}
    begins = [extent.begin for extent in session.file.extents]
    assert begins == sorted(begins)
    # What was packed is not read any more, and counts for nothing.
    assert sum(session.cold.nbytes) < 0.6 * session.file.nbytes


def test_what_is_waited_for_is_read_by_who_waits(
    net: Stand, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The thread is held back in its first read: whoever needs another does not wait for it."""
    reads, begun, held = WeightsFile.read, Event(), Event()

    def read(file: WeightsFile, index: int, memory: memoryview, at: int) -> None:
        if current_thread().name == "weights":
            begun.set()
            assert held.wait(30.0)
        reads(file, index, memory, at)

    monkeypatch.setattr(Slow, "read", read)
    places = net.places(range(4))
    arriving = ArrivingWeights(net.file, places, net.memory, net.ended.put)
    assert begun.wait(30.0)
    for index in (3, 1, 2):
        arriving.wait(index)
    assert net.ended.empty()
    held.set()
    assert net.ended.get(timeout=30.0) == ""
    begin, end = net.file.extents[0].begin, sum(net.file.extents[3])
    brought = net.memory[mmap.PAGESIZE + begin : mmap.PAGESIZE + end]
    assert brought == net.file.path.read_bytes()[begin:end]


def test_nothing_of_a_file_that_is_left_stays_in_the_page_cache(tmp_path: Path) -> None:
    """Not its head either, which was read to open it: pages around it would stay, too."""
    path = tmp_path / "weights"
    use = WeightUse("linear", ("weight",))
    write_weights(path, {"weight": torch.zeros(1 << 16)}, [use], architecture="a" * 20_000)
    drop_cached(path)
    if cached_part(path):
        pytest.skip("this file system keeps its pages: it is one of memory")
    file = WeightsFile(path)
    file.forget_use(0)
    file.drop()
    assert cached_part(path) == 0.0


def test_uses_name_each_weight_once() -> None:
    net = Net().eval()
    weights = dict(net.named_parameters())
    with torch.inference_mode():
        uses = weight_uses(weights, lambda: net(ROWS))
    names = [name for use in uses for name in use.weights]
    assert sorted(names) == sorted(weights)
    assert uses[-1] == WeightUse("", ("idle.weight", "idle.bias"))


def test_memory_of_what_left_is_given_back(session: Stand) -> None:
    def grown_bytes() -> tuple[int, int]:
        """What an execution adds to memory, and what of it stays when the weights left."""
        idle = process_memory().rss_bytes
        assert session.right()
        run = process_memory().rss_bytes
        session.cold.leave(ALL)
        return run - idle, process_memory().rss_bytes - idle

    whole = sum(session.cold.nbytes)
    session.cold.leave(ALL)
    # The heap grows by a huge page now and then, whoever runs.
    run, left = zip(*(grown_bytes() for _ in range(6)), strict=True)
    assert min(run) > 0.9 * whole
    assert min(left) < 0.05 * whole
    anonymous = process_memory().anonymous_bytes
    for _ in range(60):
        session.fetch()
        assert session.ended.get() == ""
        assert session.right()
        session.cold.leave(ALL)
    assert process_memory().anonymous_bytes - anonymous < whole


@pytest.mark.parametrize(
    "missing",
    [
        "a part",
        *(pytest.param(one, marks=pytest.mark.long) for one in ("weights.bin", "uses.json", GRAPH)),
    ],
)
def test_what_is_not_whole_is_laid_out_anew_by_who_opens_it_next(
    missing: str, tmp_path: Path
) -> None:
    model = a_model(Format.ONNX, layers_onnx(tmp_path / "net", SIZES))
    first = open_model(model, 1, str(tmp_path / "weights"))
    wanted = first.run(X)["r4"]
    first.close()
    (folder,) = (tmp_path / "weights").glob("*.onnx")
    written = (folder / "weights.bin").stat()
    if missing == "a part":
        os.truncate(folder / "weights.bin", written.st_size - mmap.PAGESIZE)
    else:
        (folder / missing).unlink()
    for _ in range(2):
        again = open_model(model, 1, str(tmp_path / "weights"))
        assert isinstance(again, OnnxRunner)
        assert again.cold is not None and not again.warnings
        assert np.array_equal(again.run(X)["r4"], wanted)
        again.close()
    found = (folder / "weights.bin").stat()
    assert found.st_size == written.st_size and found.st_mtime_ns > written.st_mtime_ns


def test_memory_that_is_not_shared_is_refused_and_the_file_serves(session: Stand) -> None:
    own = memoryview(
        mmap.mmap(-1, session.file.nbytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    )
    with pytest.raises(OSError, match="weights cannot be mapped"):
        session.cold.place({0: 0}, own)
    assert session.right()


def test_a_session_that_maps_nothing_is_refused(session: Stand) -> None:
    with pytest.raises(ValueError, match="not mapped at"):
        SessionWeights(session.file, [])


def test_a_file_that_is_read_ahead_while_a_session_opens_is_not_the_sessions(
    session: Stand, monkeypatch: pytest.MonkeyPatch
) -> None:
    ahead = []

    def opened(graph: Path, options: object) -> object:
        with session.file.path.open("rb") as file:
            ahead.append(map_file(file))
        return open_optimised(graph, options)

    monkeypatch.setattr(onnx_sharing, "open_optimised", opened)
    optimised = onnx_sharing.OptimisedModel(session.file.path.parent / GRAPH, 0)
    _, again = onnx_sharing.open_shared(optimised, onnx_sharing.session_options(1))
    assert ahead
    assert again.nbytes == session.cold.nbytes


def test_nothing_stays_mapped_of_a_closed_session(session: Stand, runner: OnnxRunner) -> None:
    session.fetch()
    runner.close()
    maps = Path("/proc/self/maps").read_text()
    assert "(deleted)" not in maps or "/dev/zero (deleted)" in maps
    assert (
        len(mapped_pieces(session.file.path)) == 1
    )  # its own, by which it is asked what is cached
