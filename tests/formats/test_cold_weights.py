"""A cold start on cores: no operator reads weights before they are there."""

from collections.abc import Iterable, Iterator
from pathlib import Path
from queue import SimpleQueue
from threading import Event, current_thread
from time import sleep

import pytest
import torch
from torch import nn

from interlace.formats.cold_weights import ColdWeights, weight_uses
from interlace.formats.page_cache import cached_part, drop_cached
from interlace.formats.runner import ArrivingWeights, WeightUse
from interlace.formats.weights_file import ALIGNMENT_BYTES, WeightsFile, write_weights

ROWS = torch.arange(6).view(2, 3) % 5


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


class Stand:
    """A net with its weights in a file, and memory to bring them to."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "weights"
        self.net = Net().eval()
        weights = dict(self.net.named_parameters()) | dict(self.net.named_buffers())
        write_weights(self.path, weights, weight_uses(weights, lambda: self.net(ROWS)))
        self.file = Slow(self.path)
        self.cold = ColdWeights(self.file, weights)
        self.memory = memoryview(bytearray(self.file.nbytes + ALIGNMENT_BYTES))
        self.ended: SimpleQueue[str] = SimpleQueue()
        self.poison()

    def poison(self) -> None:
        """What no weights are (NaN), to be sure that none is read early."""
        self.memory[:] = b"\xff" * len(self.memory)

    def places(self, indices: Iterable[int]) -> dict[int, int]:
        return {index: self.file.extents[index].begin for index in indices}

    def fetch(self, indices: Iterable[int]) -> None:
        self.cold.fetch(self.places(indices), self.memory, self.ended.put)

    def run(self) -> torch.Tensor:
        with self.cold.arrivals():
            answer: torch.Tensor = self.net(ROWS)
        return answer


class Slow(WeightsFile):
    """A link that every layer takes a while on."""

    def read(self, index: int, memory: memoryview, at: int) -> None:
        sleep(0.005)
        super().read(index, memory, at)


@pytest.fixture
def stand(tmp_path: Path) -> Iterator[Stand]:
    with torch.inference_mode():
        made = Stand(tmp_path)
        yield made
        made.cold.close()


@pytest.mark.parametrize("pattern", range(16))
def test_answers_are_the_warm_ones_whatever_is_copied(pattern: int, stand: Stand) -> None:
    uses = stand.file.uses
    assert [use.operator for use in uses] == ["embedding", "linear", "batch_norm", "linear", ""]
    wanted = stand.run()
    copied = [index for index in range(4) if pattern >> index & 1] + [4] * (pattern % 2)
    for _ in range(3):
        stand.cold.leave(range(len(uses)))
        stand.poison()
        stand.file.forget()
        stand.fetch(copied)
        assert torch.equal(stand.run(), wanted)
        assert stand.ended.get() == ""
    assert torch.equal(stand.run(), wanted)  # warm from now on


def test_without_the_wait_the_poison_shows(stand: Stand) -> None:
    """The test above could not pass by chance: memory that is not waited for spoils the answer."""
    everything = range(len(stand.file.uses))
    stand.cold.place(stand.places(everything), stand.memory)
    assert stand.run().isnan().all()
    for index in everything:
        stand.file.read(index, stand.memory, stand.file.extents[index].begin)
    assert not stand.run().isnan().any()


def test_a_file_that_cannot_be_read_is_an_error_and_not_an_answer(stand: Stand) -> None:
    wanted = stand.run().clone()
    with stand.path.open("r+b") as file:
        content = file.read()
        file.truncate(stand.file.nbytes // 4)
    stand.fetch(range(len(stand.file.uses)))
    with pytest.raises(OSError, match="it ends at"):
        stand.run()
    assert "it ends at" in stand.ended.get()
    stand.path.write_bytes(content)
    stand.cold.leave(range(len(stand.file.uses)))
    assert torch.equal(stand.run(), wanted)


def test_what_is_waited_for_is_read_by_who_waits(
    stand: Stand, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The thread is held back in its first read: whoever needs another does not wait for it."""
    reads, begun, held = WeightsFile.read, Event(), Event()

    def read(file: WeightsFile, index: int, memory: memoryview, at: int) -> None:
        if current_thread().name == "weights":
            begun.set()
            assert held.wait(30.0)
        reads(file, index, memory, at)

    monkeypatch.setattr(Slow, "read", read)
    places = stand.places(range(4))
    arriving = ArrivingWeights(stand.file, places, stand.memory, stand.ended.put)
    assert begun.wait(30.0)
    for index in (3, 1, 2):
        arriving.wait(index)
    assert stand.ended.empty()
    held.set()
    assert stand.ended.get(timeout=30.0) == ""
    begin, end = stand.file.extents[0].begin, sum(stand.file.extents[3])
    assert stand.memory[begin:end] == stand.path.read_bytes()[begin:end]


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
