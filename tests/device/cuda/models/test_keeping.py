"""Models that come back soon: what stays open, for how long, and what they are spared."""

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest

from interlace.core.model import Model, Precision
from interlace.device.cuda.driver.api import Driver
from interlace.device.cuda.memory.budget import DeviceMemoryError, MemoryBudget
from interlace.device.cuda.memory.mapped import PooledDriver
from interlace.device.cuda.models.loaded import LoadedModel
from interlace.device.cuda.models.opening import PortableModel
from interlace.device.cuda.worker.model_cache import ModelCache
from interlace.device.process.error_text import MemoryLimitError
from interlace.formats.opened import OpenedModel
from tests.device.cuda.models.rig import Bench
from tests.device.cuda.models.rig import bench as fresh
from tests.device.cuda.models.test_loaded import batch, model, opened_as, plain

ALL = 1 << 40
GRAPH_BYTES = 1 << 20


class Keeping:
    """The models of a process on a fake GPU. ``done`` counts what a load costs."""

    def __init__(self, gpu: Bench, keep_bytes: int, monkeypatch: pytest.MonkeyPatch) -> None:
        self.gpu = gpu
        self.done: Counter[str] = Counter()
        opened, become = opened_as(plain), PortableModel.become

        def open_model(described: Model) -> OpenedModel:
            self.done["opened"] += 1
            return opened(described)

        def placed(*arguments: Any) -> None:
            self.done["placed"] += 1
            become(*arguments)

        monkeypatch.setattr(PortableModel, "become", placed)
        context = gpu.context._replace(open_model=open_model)
        self.models = ModelCache(partial(LoadedModel, context), keep_bytes=keep_bytes)

    def load(self, known: Model, name: str, *batches: int) -> LoadedModel:
        """As a worker does for a partition, which is carved if it is not there; and a batch."""
        lane = next((one for one in self.gpu.lanes.lanes if one.name == name), None)
        lane = lane or self.gpu.carve(name)
        there = (known, name, lane, batches or (1,))
        served = self.models.at_once(*there) or self.models.load(*there)
        assert isinstance(served, LoadedModel)
        assert np.isfinite(self.gpu.run(served, lane, batch(1))["y"]).all()
        return served

    def leave(self, known: Model, name: str) -> None:
        """The model is unloaded there, and the partition released."""
        if self.models.leave(known.key, name):
            self.models.drop(known.key)
        self.gpu.lanes.release(name)

    @property
    def open(self) -> list[str]:
        return list(self.models._served)


Start = Callable[[int], Keeping]


@pytest.fixture
def start(monkeypatch: pytest.MonkeyPatch) -> Iterator[Start]:
    with ExitStack() as steps:

        def started(keep_bytes: int) -> Keeping:
            keeping = Keeping(steps.enter_context(fresh()), keep_bytes, monkeypatch)
            steps.callback(keeping.models.close)
            return keeping

        yield started


def numbered(count: int) -> list[Model]:
    return [replace(model(), name=f"m{number}") for number in range(count)]


def test_another_partition_costs_a_capture_alone(start: Start) -> None:
    keeping, known = start(0), model()
    keeping.load(known, "smallest")
    keeping.done.clear()
    keeping.load(known, "other", 1, 4)
    assert not keeping.done
    keeping.leave(known, "other")
    graphs = len(keeping.gpu.driver._graphs)
    keeping.load(known, "again", 1, 4)  # on the lane that was left: nothing at all
    assert len(keeping.gpu.driver._graphs) == graphs
    assert not keeping.done


@pytest.mark.parametrize(("keep_bytes", "opens"), [(0, 2), (ALL, 1)])
def test_what_is_let_go_of_is_closed_unless_it_is_kept(
    start: Start, keep_bytes: int, opens: int
) -> None:
    keeping, known = start(keep_bytes), model()
    for name in ("a", "b"):
        keeping.load(known, name)
        keeping.leave(known, name)
    assert keeping.done == {"opened": opens, "placed": opens}
    assert keeping.open == ([known.key] if keep_bytes else [])


def test_who_left_longest_ago_goes_first(start: Start) -> None:
    first, second, third = numbered(3)
    keeping = start(5 * GRAPH_BYTES // 2)  # two of them
    for known in (first, second):
        keeping.load(known, known.name)
    for known in (second, first):
        keeping.leave(known, known.name)
    assert keeping.open == [second.key, first.key]
    keeping.load(third, "c")
    keeping.leave(third, "c")
    assert keeping.open == [first.key, third.key]


def test_what_is_held_is_never_given_up_for_what_is_kept(start: Start) -> None:
    held, kept = numbered(2)
    keeping = start(GRAPH_BYTES // 2)
    keeping.load(held, "a")
    keeping.load(kept, "b")
    keeping.leave(kept, "b")
    assert keeping.open == [held.key]


def test_another_model_under_a_kept_ones_name_is_opened(start: Start) -> None:
    keeping, known = start(ALL), model()
    keeping.load(known, "a")
    keeping.leave(known, "a")
    changed = replace(known, digest="another")
    assert keeping.load(changed, "b").model == changed
    assert keeping.done["opened"] == 2


def test_a_load_that_is_short_of_memory_gets_what_is_kept(start: Start) -> None:
    kept, held, new = numbered(3)
    keeping = start(ALL)
    driver = keeping.gpu.driver
    for name in ("a", "b"):
        keeping.load(held, name)
    keeping.leave(held, "b")  # its graphs stay with the lane, which is idle
    for name in ("b", "c"):
        keeping.load(kept, name)
    for name in ("b", "c"):
        keeping.leave(kept, name)
    driver.others(driver.memory().free_bytes - GRAPH_BYTES // 2)
    keeping.load(new, "d")
    assert keeping.open == [held.key, new.key]
    assert [note for note in keeping.gpu.notes if "m1/1#0 left 1 lane(s)" in note]
    driver.others(driver.memory().free_bytes + driver._memory.others_bytes)
    with pytest.raises(DeviceMemoryError):
        keeping.load(kept, "e")
    driver.others(0)
    keeping.load(held, "a")  # who holds it is served on


def test_graphs_on_idle_lanes_are_no_reason_to_exceed_a_limit(start: Start) -> None:
    known = model()
    known = replace(known, terms=replace(known.terms, memory_limit_bytes=5 * GRAPH_BYTES // 2))
    keeping = start(0)
    for name in ("a", "b"):
        keeping.load(known, name)
    keeping.leave(known, "b")
    keeping.gpu.carve("other")  # on the lane that was left, so that the next one is new
    keeping.load(known, "c")
    assert [note for note in keeping.gpu.notes if "left 1 lane(s)" in note]
    with pytest.raises(MemoryLimitError):
        keeping.load(known, "d")


def test_loads_and_unloads_hold_up_nobody_who_is_served() -> None:
    """Neither memory nor streams are given back to the driver in a way that waits for the GPU."""
    with fresh() as gpu:
        pool = PooledDriver(gpu.driver)
        backend = gpu.backend._replace(driver=cast(Driver, pool))
        context = gpu.context._replace(
            backend=backend, budget=MemoryBudget(backend.driver), open_model=opened_as(plain)
        )
        busy: list[bool] = []
        context = context._replace(quiet=lambda: not busy)
        models = ModelCache(partial(LoadedModel, context))
        served, other = numbered(2)
        lane, beside = gpu.carve("served"), gpu.carve("beside")
        loaded = models.load(served, "served", lane, (1,))
        assert isinstance(loaded, LoadedModel)
        gpu.driver.hold(lane.stream)
        gpu.driver.launch_graph(loaded._caches[lane].graphs[0]._captured.executable, lane.stream)
        busy.append(True)
        for _ in range(2):
            models.load(other, "beside", beside, (1, 4))
            assert models.leave(other.key, "beside")
            models.drop(other.key)
        assert not gpu.driver.stalls
        busy.clear()
        models.load(other, "beside", beside, (1,))
        assert models.leave(other.key, "beside")
        models.drop(other.key)
        assert gpu.driver.stalls["trim"] == 1  # said to be quiet
        gpu.driver.let_go(lane.stream)
        models.close()
        pool.close_slabs()


def test_a_variant_chosen_once_is_taken_from_the_folder(tmp_path: Path) -> None:
    terms = replace(model().terms, precision=Precision.AUTO)
    described, folder = replace(model(), terms=terms), tmp_path / "choices"
    trials: list[float] = []

    def stopwatch(*_: object) -> float:
        """Each trial is slower than the one before."""
        trials.append(float(len(trials)))
        return trials[-1]

    def chosen() -> str:
        watch = {"stopwatch": stopwatch, "choices": folder}
        with fresh(open_model=opened_as(plain), **watch) as gpu:
            loaded = gpu.load(described, gpu.carve("a"), batches=(1,))
            variant = str(loaded._portable.variant)
            loaded.close()
        return variant

    first, count = chosen(), len(trials)
    assert count > 1
    (file,) = folder.iterdir()
    assert file.read_text() == first
    assert chosen() == first and len(trials) == count
    file.write_text("bf16")  # what another process found
    assert chosen() == "bf16" and len(trials) == count
    file.write_text("rubbish")
    assert chosen() == first and len(trials) == 2 * count
