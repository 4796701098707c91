"""Models of one architecture in a worker: one open module, weights that come and go for each."""

import random
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from bench.cold.variants import variants, write_variant
from interlace.core.messages import Evict
from interlace.core.model import Format, Model, ServiceTerms
from interlace.core.request import Request, Tensor
from interlace.core.tensor import Signature, TensorSpec
from interlace.formats import shared_architecture
from tests.device.cpu.rig import ColdRig

_COUNT = 4
#: What runs before any weights, and three layers.
_STEPS = 4
SIGNATURE = Signature(
    (TensorSpec("x", "FP32", (64,)),), (TensorSpec("OUTPUT__0", "FP32", (8,)),), True, 8
)
X = np.random.default_rng(1).standard_normal((2, 64)).astype(np.float32)


class Variants(ColdRig):
    """Perceptrons that differ in their weights; ``p`` has opened each, ``q`` the first of them."""

    steps = _STEPS
    _input: Tensor | None = None

    def __init__(self, folder: Path) -> None:
        self.weights_folder = folder / "weights"
        super().__init__(self.weights_folder, 1 << 20)
        variants(folder, 2 * _COUNT, hidden=32)
        self.models = [self._model(folder, 2 * number) for number in range(_COUNT)]
        assert self.carve("p").failure is None
        for model in self.models:
            assert self.load_cold("p", model).failure is None
        self.own = [self.answer(model, "p") for model in self.models]
        assert self.carve("q").failure is None
        assert self.load_cold("q", self.models[0]).failure is None
        for model in self.models[1:]:  # nothing of them is opened
            Path(model.path, "model.py").unlink()
            assert self.load_cold("q", model).failure is None

    def _model(self, folder: Path, number: int) -> Model:
        name = f"v{number:04d}"
        path, terms = str(folder / name / "1"), ServiceTerms(100.0)
        model = Model(name, 1, Format.FACTORY, path, name * 13, SIGNATURE, terms)
        self.device.register(model)
        return model

    def answer(self, model: Model, name: str) -> list[list[object]]:
        return self.values(self.run(self.asks(model), name=name))

    def asks(self, model: Model) -> Request:
        if self._input is None:
            self._input = self.tensor("x", "FP32", X)
        return self.request(model, self._input)


@pytest.fixture(scope="module")
def rig(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Variants]:
    made = Variants(tmp_path_factory.mktemp("variants"))
    yield made
    made.close()


def test_each_model_has_its_own_answers(rig: Variants) -> None:
    assert [rig.answer(model, "q") for model in rig.models] == rig.own
    assert len({str(answer) for answer in rig.own}) == _COUNT


def test_models_of_one_architecture_are_described_so(rig: Variants) -> None:
    """As they are before they are profiled: not loaded cold."""
    described = rig.loop.run_until_complete(rig.device.describe(rig.models[0]))
    assert described.architecture
    found = {shared_architecture(one, str(rig.weights_folder)) for one in rig.models}
    assert found == {described.architecture}


@pytest.mark.parametrize("seed", range(6))
def test_weights_come_and_go_for_each_by_itself(rig: Variants, seed: int) -> None:
    """To the bit, whoever ran or was brought before, with nothing but poison in free memory."""
    chance = random.Random(seed)
    held: list[set[int]] = [set() for _ in rig.models]
    for _ in range(40):
        number, name = chance.randrange(_COUNT), chance.choice("pq")
        model = rig.models[number]
        rig.poison()
        if held[number] and chance.random() < 0.4:
            rig.end_of(Evict(rig.gpu, model.key, tuple(sorted(held[number]))))
            held[number] = set()
        elif chance.random() < 0.5:
            layers = {n for n in range(1, _STEPS) if chance.random() < 0.6} - held[number]
            fetch, run = rig.fetch_of(layers, name, model), rig.batch(rig.asks(model), name=name)
            rig.do(fetch)
            rig.do(run)
            rig.wait(lambda: bool(rig.ended(fetch) and rig.ended(run)))  # noqa: B023
            held[number] |= layers
            assert rig.values(rig.ended(run)[0]) == rig.own[number]
        other = chance.randrange(_COUNT)
        assert rig.answer(rig.models[other], chance.choice("pq")) == rig.own[other]
    for model, layers in zip(rig.models, held, strict=True):
        rig.end_of(Evict(rig.gpu, model.key, tuple(sorted(layers))))


def test_the_others_stay_when_one_is_unloaded(rig: Variants) -> None:
    for model in (rig.models[-1], rig.models[0]):
        assert rig.unload(model, "q").failure is None
        assert [rig.answer(one, "q") for one in rig.models[1:3]] == rig.own[1:3]
    for model in (rig.models[-1], rig.models[0]):
        assert rig.load_cold("q", model).failure is None
    assert [rig.answer(model, "q") for model in rig.models] == rig.own


def test_damaged_weights_are_laid_out_anew_by_whoever_loads_them(rig: Variants) -> None:
    """Not taken over unseen because a module of its architecture is open."""
    model = rig.models[2]
    write_variant(Path(model.path), 4, 32, {})
    for name in "pq":
        assert rig.unload(model, name).failure is None
    (file,) = rig.weights_folder.glob(f"{model.digest}-*")
    whole = file.read_bytes()
    file.write_bytes(whole[:-2000] + bytes(100) + whole[-1900:])
    for name in "qp":
        assert rig.load_cold(name, model).failure is None
        assert rig.answer(model, name) == rig.own[2]
    assert file.read_bytes() == whole
    Path(model.path, "model.py").unlink()


def test_a_weights_file_that_is_gone_fails_plainly(rig: Variants) -> None:
    gone = replace(rig.models[1], name="gone", digest="gone")
    rig.device.register(gone)
    failure = rig.load_cold("q", gone).failure
    assert failure is not None
    assert not failure.fatal
    assert "model.py" in failure.detail  # it is opened anew, and its code is not there
