"""Weights that come and go: no layer runs before they are there, and all memory returns."""

import gc
import os
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from interlace.core.messages import Evict
from interlace.core.model import Format, Model, ServiceTerms
from interlace.core.request import Request
from interlace.core.tensor import Signature, TensorSpec
from interlace.device.cpu.page_cache_watch import _Entrant
from tests.device.cpu.rig import ColdRig, Rig, settings
from tests.formats.making import layers_onnx, write_factory

WIDTH = 384
LAYERS = 6
#: The layers, what is before the first, and what no execution reads.
STEPS = LAYERS + 2
LAYER_BYTES = (WIDTH * WIDTH + WIDTH) * 4
CODE = f"""
import torch
INPUTS = {{"x": ("FP32", ({WIDTH},))}}
class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(1)
        self.idle = torch.nn.Linear({WIDTH}, {WIDTH})
        self.parts = torch.nn.ModuleList(torch.nn.Linear({WIDTH}, {WIDTH}) for _ in range({LAYERS}))
    def forward(self, x):
        for part in self.parts:
            x = part(x).relu()
        return x
def create_model():
    return Net()
"""
X = np.random.default_rng(0).standard_normal((2, WIDTH)).astype(np.float32)


class WeightsRig(ColdRig):
    """A device with a budget, and a model in partitions ``p`` and ``q``."""

    steps = STEPS

    def __init__(self, folder: Path, budget_bytes: int, format: Format = Format.FACTORY) -> None:
        code = folder / "net" / "1"
        code.parent.mkdir(parents=True)
        if format is Format.ONNX:
            layers_onnx(code, [WIDTH] * STEPS)  # as many steps: a weight between each two
        else:
            write_factory(code, CODE)
        self.folder = folder / "weights"
        super().__init__(self.folder, budget_bytes)
        named = f"r{STEPS - 2}" if format is Format.ONNX else "OUTPUT__0"
        y = TensorSpec(named, "FP32", (WIDTH,))
        signature = Signature((TensorSpec("x", "FP32", (WIDTH,)),), (y,), True, 8)
        self.net = Model("net", 1, format, str(code), "net", signature, ServiceTerms(100.0))
        self.device.register(self.net)
        for name in ("p", "q"):
            assert self.carve(name).failure is None
            assert self.load_cold(name).failure is None
        self.warm = self.answers("p")

    @property
    def free_bytes(self) -> int:
        free: int = self.weights._extents.free_bytes
        return free

    def answers(self, name: str) -> list[list[object]]:
        return self.values(self.run(self.asked(), name=name))

    def asked(self) -> Request:
        return self.request(self.net, self.tensor("x", "FP32", X))


@pytest.fixture(scope="module", params=[Format.FACTORY, Format.ONNX], ids=["torch", "onnx"])
def rig(
    tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest
) -> Iterator[WeightsRig]:
    folder = tmp_path_factory.mktemp("cold")
    made = WeightsRig(folder, STEPS * LAYER_BYTES, request.param)
    yield made
    made.close()


ALL = set(range(1, STEPS))


def evict(rig: WeightsRig, layers: set[int] = ALL) -> None:
    assert rig.end_of(Evict(rig.gpu, rig.net.key, tuple(sorted(layers)))).failure is None


@pytest.mark.parametrize(
    "seed", [*range(4), *(pytest.param(seed, marks=pytest.mark.long) for seed in range(4, 12))]
)
def test_no_layer_runs_before_its_weights_are_there(rig: WeightsRig, seed: int) -> None:
    """Answers are the warm ones to the bit, whichever layers are copied while the model runs."""
    copied = {n for n in ALL if np.random.default_rng(seed).random() < 0.7} if seed else ALL
    whole = rig.free_bytes
    rig.poison()
    fetch, run = rig.fetch_of(copied), rig.batch(rig.asked())
    rig.do(fetch)
    rig.do(run)
    rig.wait(lambda: bool(rig.ended(fetch) and rig.ended(run)))
    assert rig.ended(fetch)[0].failure is None
    assert rig.values(rig.ended(run)[0]) == rig.warm
    assert whole - rig.free_bytes == pytest.approx(len(copied) * LAYER_BYTES, rel=0.01)
    rig.poison()  # what others use is not there
    for name in ("p", "q"):
        assert rig.answers(name) == rig.warm
    some = set(sorted(copied)[::2])
    evict(rig, some)
    rig.poison()
    for name in ("q", "p"):
        assert rig.answers(name) == rig.warm
    evict(rig)
    assert rig.free_bytes == whole
    rig.poison()
    assert rig.answers("q") == rig.warm


def test_the_poison_would_show(rig: WeightsRig) -> None:
    assert rig.end_of(rig.fetch_of(ALL)).failure is None
    rig.weights.arena.memory[:] = b"\xff" * rig.weights.arena.size_bytes
    values = rig.answers("p")
    assert values != rig.warm
    evict(rig)
    assert rig.answers("p") == rig.warm


def test_layers_that_find_no_place_are_read_in_the_file(rig: WeightsRig) -> None:
    taken = rig.weights._extents.take(rig.free_bytes - 2 * LAYER_BYTES - 4096)
    rig.poison()
    assert rig.end_of(rig.fetch_of(ALL)).failure is None
    assert rig.free_bytes <= 8192  # less than a layer
    assert rig.answers("p") == rig.answers("q") == rig.warm
    evict(rig)
    rig.weights._extents.give_back(taken)


def test_a_cancelled_fetch_ends_once_and_its_memory_returns(rig: WeightsRig) -> None:
    whole = rig.free_bytes
    for _ in range(10):
        fetch = rig.fetch_of(ALL)
        rig.do(fetch)
        rig.device.cancel_fetch(rig.net.key)
        rig.wait(lambda: bool(rig.ended(fetch)))  # noqa: B023
        failure = rig.ended(fetch)[0].failure
        assert failure is None or "cancelled" in failure.detail
        if failure is None:
            evict(rig)
        assert rig.free_bytes == whole
    rig.device.cancel_fetch(rig.net.key)  # nothing is fetched
    assert rig.answers("p") == rig.warm


def test_without_a_budget_nothing_can_leave(rig: WeightsRig) -> None:
    bare = Rig(settings())
    failure = bare.end_of(Evict(bare.gpu, rig.net.key, (1,))).failure
    bare.close()
    assert failure is not None and "no budget" in failure.detail


def test_a_file_cut_short_fails_that_fetch_alone(rig: WeightsRig) -> None:
    (file,) = (*rig.folder.glob("*.safetensors"), *rig.folder.glob("*/weights.bin"))
    whole, content = rig.free_bytes, file.read_bytes()
    os.truncate(file, len(content) // 4)
    failure = rig.end_of(rig.fetch_of(ALL)).failure
    with file.open("r+b") as again:
        again.write(content)
    assert failure is not None
    assert not failure.fatal
    assert "it ends at" in failure.detail
    assert rig.free_bytes == whole
    assert rig.end_of(rig.fetch_of(ALL)).failure is None
    assert rig.answers("p") == rig.answers("q") == rig.warm
    evict(rig)


def test_what_is_held_outlives_a_worker_and_goes_with_the_last(rig: WeightsRig) -> None:
    whole = rig.free_bytes
    assert rig.end_of(rig.fetch_of(ALL)).failure is None
    held = whole - rig.free_bytes
    for _ in range(2):
        fetch = rig.fetch_of(ALL)
        os.kill(rig.device.workers()["p"], signal.SIGKILL)
        rig.do(fetch)
        rig.wait(lambda: "p" in {one.partition for one in rig.lost})
        rig.wait(lambda: bool(rig.ended(fetch)))  # noqa: B023
        rig.lost.clear()
        assert whole - rig.free_bytes == held
        assert rig.answers("q") == rig.warm
        assert rig.carve("p").failure is None
        assert rig.load_cold("p").failure is None
        assert rig.answers("p") == rig.warm
    evict(rig)
    fetch = rig.fetch_of(ALL)
    rig.do(fetch)
    os.kill(rig.device.workers()["p"], signal.SIGKILL)
    rig.wait(lambda: bool(rig.ended(fetch)) and bool(rig.lost))
    rig.wait(lambda: rig.free_bytes == whole or rig.ended(fetch)[0].failure is None)
    assert rig.answers("q") == rig.warm
    assert rig.end_of(rig.fetch_of(ALL, "q")).failure is None
    assert rig.unload(rig.net, "q").failure is None
    assert rig.free_bytes == whole
    for name in ("p", "q"):
        if name == "p":
            assert rig.carve(name).failure is None
        assert rig.load_cold(name).failure is None
        assert rig.answers(name) == rig.warm


def test_a_fetch_that_waits_for_room_ends_when_nobody_waits_or_its_partition_leaves(
    rig: WeightsRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    watch, whole = rig.weights._page_cache, rig.free_bytes

    def waits(model: str, then: Callable[[], None]) -> None:
        watch._entrants.append(_Entrant(model, then))

    monkeypatch.setattr(watch, "read_ahead", waits)
    for end in (
        lambda: rig.device.cancel_fetch(rig.net.key),
        lambda: rig.unload(rig.net, "p"),
    ):
        fetch = rig.fetch_of(ALL)
        rig.do(fetch)
        assert rig.free_bytes < whole and not rig.ended(fetch)
        end()
        rig.wait(lambda: bool(rig.ended(fetch)))  # noqa: B023
        (ended,) = rig.ended(fetch)
        assert ended.failure is not None and "cancelled" in ended.failure.detail
        assert ended.failure.innocent
        assert rig.free_bytes == whole and not watch._entrants
    monkeypatch.undo()
    assert rig.load_cold("p").failure is None
    assert rig.end_of(rig.fetch_of(ALL)).failure is None
    assert rig.answers("p") == rig.warm
    evict(rig)


def test_a_batch_that_reads_its_file_is_told_from_one_that_does_not(
    rig: WeightsRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever was planned: what it reads comes into the page cache, and counts there."""
    watch, told = rig.weights._page_cache, []
    for name in ("used", "read"):
        monkeypatch.setattr(watch, name, lambda model, name=name: told.append(name))
    assert rig.answers("p") == rig.warm
    assert rig.end_of(rig.fetch_of(ALL)).failure is None
    assert rig.answers("p") == rig.warm
    evict(rig)
    assert told == ["read", "read", "used"], "a batch on the file, a fetch, a batch in memory"


def test_many_cycles_leave_memory_and_descriptors_as_they_were(rig: WeightsRig) -> None:
    def cycle() -> None:
        assert rig.end_of(rig.fetch_of(ALL)).failure is None
        assert rig.answers("p") == rig.warm
        evict(rig)

    def descriptors() -> list[int]:
        gc.collect()  # other tests leave some, too
        return [len(os.listdir(f"/proc/{pid}/fd")) for pid in pids]

    pids = [os.getpid(), *rig.device.workers().values()]
    cycle()
    whole, before = rig.free_bytes, descriptors()
    for _ in range(50):
        cycle()
    for _ in range(100):  # a look at the page cache has a file open for a moment
        if descriptors() == before:
            break
        time.sleep(0.05)
    assert descriptors() == before
    assert rig.free_bytes == whole
