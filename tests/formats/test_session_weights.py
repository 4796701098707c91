"""Weights that come and go under a session: answers stay, memory is given back."""

import mmap
import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from queue import SimpleQueue

import numpy as np
import pytest

from interlace.core.model import Format
from interlace.formats import onnx_sharing, open_model
from interlace.formats.onnx import OnnxRunner
from interlace.formats.onnx_layout import GRAPH
from interlace.formats.onnx_sharing import open_optimised
from interlace.formats.page_cache import map_file
from interlace.formats.session_weights import SessionWeights, mapped_pieces
from tests.formats.making import a_model, layers_onnx
from tests.process_memory import process_memory

SIZES = (256, 640, 640, 640, 256, 256)
X = {"x": np.random.default_rng(1).standard_normal((3, SIZES[0]), np.float32)}


class Stand:
    """A session, and memory to bring its weights to."""

    def __init__(self, folder: Path) -> None:
        model = a_model(Format.ONNX, layers_onnx(folder / "net", SIZES))
        wanted = open_model(model, 1, None)
        self.wanted = wanted.run(X)["r4"]
        wanted.close()
        runner = open_model(model, 1, str(folder / "weights"))
        assert isinstance(runner, OnnxRunner)
        assert runner.cold is not None
        self.runner, self.cold = runner, runner.cold
        self.file = self.cold.file
        self.memory = memoryview(mmap.mmap(-1, self.file.nbytes + mmap.PAGESIZE))
        self.ended: SimpleQueue[str] = SimpleQueue()
        self.poison()

    def poison(self) -> None:
        self.memory[:] = b"\xff" * len(self.memory)

    def places(self, indices: Iterable[int]) -> dict[int, int]:
        return {index: mmap.PAGESIZE + self.file.extents[index].begin for index in indices}

    def right(self) -> bool:
        return np.allclose(self.runner.run(X)["r4"], self.wanted, atol=1e-5)


@pytest.fixture
def stand(tmp_path: Path) -> Iterator[Stand]:
    made = Stand(tmp_path)
    yield made
    made.runner.close()


def test_uses_are_those_of_an_execution_in_its_order(stand: Stand) -> None:
    assert [use.weights for use in stand.file.uses] == [(f"w{n}",) for n in range(5)]
    assert {use.operator for use in stand.file.uses} == {"MatMul"}
    assert [extent.begin for extent in stand.file.extents] == sorted(
        extent.begin for extent in stand.file.extents
    )
    # What was packed is not read any more, and counts for nothing.
    assert sum(stand.cold.nbytes) < 0.6 * stand.file.nbytes


def test_answers_are_right_whatever_is_copied(stand: Stand) -> None:
    for pattern in range(0, 32, 3):
        copied = [index for index in range(5) if pattern >> index & 1]
        for _ in range(3):
            stand.cold.leave(range(5))
            stand.poison()
            stand.cold.fetch(stand.places(copied), stand.memory, stand.ended.put)
            while stand.ended.empty():
                assert stand.right()  # while they come
            assert stand.ended.get() == ""
            assert stand.right()


def test_what_is_placed_is_what_is_read(stand: Stand) -> None:
    """The test above could not pass by chance: poison where weights should be spoils the answer."""
    stand.cold.place(stand.places(range(5)), stand.memory)
    assert np.isnan(stand.runner.run(X)["r4"]).all()
    for index, at in stand.places(range(5)).items():
        stand.file.read(index, stand.memory, at)
    assert stand.right()
    stand.poison()
    stand.cold.leave(range(5))
    assert stand.right()


def test_memory_of_what_left_is_given_back(stand: Stand) -> None:
    def grown_bytes() -> tuple[int, int]:
        """What an execution adds to memory, and what of it stays when the weights left."""
        idle = process_memory().rss_bytes
        assert stand.right()
        run = process_memory().rss_bytes
        stand.cold.leave(range(5))
        return run - idle, process_memory().rss_bytes - idle

    whole = sum(stand.cold.nbytes)
    stand.cold.leave(range(5))
    # The heap grows by a huge page now and then, whoever runs.
    run, left = zip(*(grown_bytes() for _ in range(6)), strict=True)
    assert min(run) > 0.9 * whole
    assert min(left) < 0.05 * whole
    anonymous = process_memory().anonymous_bytes
    for _ in range(60):
        stand.cold.fetch(stand.places(range(5)), stand.memory, stand.ended.put)
        assert stand.ended.get() == ""
        assert stand.right()
        stand.cold.leave(range(5))
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


def test_a_fetch_that_fails_or_is_cancelled_leaves_the_file(stand: Stand) -> None:
    content = stand.file.path.read_bytes()
    os.truncate(stand.file.path, stand.file.extents[2].begin)
    stand.cold.fetch(stand.places(range(5)), stand.memory, stand.ended.put)
    assert "it ends at" in stand.ended.get()
    with stand.file.path.open("r+b") as again:
        again.write(content)
    stand.cold.leave(range(5))
    stand.poison()
    assert stand.right()
    for _ in range(10):
        stand.cold.fetch(stand.places(range(5)), stand.memory, stand.ended.put)
        stand.cold.cancel()
        assert stand.ended.get() in ("", "cancelled")
        stand.cold.leave(range(5))
        stand.poison()
        assert stand.right()


def test_memory_that_is_not_shared_is_refused_and_the_file_serves(stand: Stand) -> None:
    own = memoryview(mmap.mmap(-1, stand.file.nbytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS))
    with pytest.raises(OSError, match="weights cannot be mapped"):
        stand.cold.place({0: 0}, own)
    assert stand.right()


def test_a_session_that_maps_nothing_is_refused(stand: Stand) -> None:
    with pytest.raises(ValueError, match="not mapped at"):
        SessionWeights(stand.file, [])


def test_a_file_that_is_read_ahead_while_a_session_opens_is_not_the_sessions(
    stand: Stand, monkeypatch: pytest.MonkeyPatch
) -> None:
    ahead = []

    def opened(graph: Path, options: object) -> object:
        with stand.file.path.open("rb") as file:
            ahead.append(map_file(file))
        return open_optimised(graph, options)

    monkeypatch.setattr(onnx_sharing, "open_optimised", opened)
    optimised = onnx_sharing.OptimisedModel(stand.file.path.parent / GRAPH, 0)
    _, again = onnx_sharing.open_shared(optimised, onnx_sharing.session_options(1))
    assert ahead
    assert again.nbytes == stand.cold.nbytes


def test_nothing_stays_mapped_of_a_closed_session(stand: Stand) -> None:
    stand.cold.fetch(stand.places(range(5)), stand.memory, stand.ended.put)
    stand.runner.close()
    maps = Path("/proc/self/maps").read_text()
    assert "(deleted)" not in maps or "/dev/zero (deleted)" in maps
    assert len(mapped_pieces(stand.file.path)) == 1  # its own, by which it is asked what is cached
