"""Weights that come and go in a process that holds a GPU: asked by work, answered once each."""

from dataclasses import replace

import pytest

from interlace.core.loading import HostLinks, LoadPlan, LoadStep, WeightPath
from interlace.core.messages import Evict, Fetch, Load, WorkFinished
from interlace.core.model import Model
from interlace.device.cuda.settings import only_gpu
from tests.device.cpu.rig import Rig, refusal
from tests.device.cuda.backends import PEER
from tests.device.cuda.conftest import MakeRig
from tests.device.cuda.rig import MECHANISMS
from tests.device.models import model

BUDGET_BYTES = 1 << 16
#: The model's layers, and what is between them.
LAYERS = ("0", "1", "2", "3", "between")
ONE, OTHER = model("layered"), model("layered-too")
ROW, EIGHTFOLD = [1.0, 2.0, 3.0, 4.0], [[8.0, 16.0, 24.0, 32.0]]


@pytest.fixture(params=["green", "streams"])
def rig(request: pytest.FixtureRequest, make_rig: MakeRig) -> Rig:
    gpu = replace(MECHANISMS[request.param]().gpu, id="gpu0", weights_bytes=BUDGET_BYTES)
    return make_rig(request.param, gpu=gpu)


@pytest.fixture
def pair(make_rig: MakeRig) -> Rig:
    links = HostLinks(1, 4e8, names=("gpu0", "gpu1"))
    gpu = replace(MECHANISMS["green"]().gpu, id="gpu0", weights_bytes=BUDGET_BYTES, links=links)
    seen = only_gpu(MECHANISMS["green"]().uuid, PEER)
    return make_rig(gpu=gpu, environment=seen, backend="tests.device.cuda.backends:paired")


def cold(rig: Rig, one: Model, name: str = "p") -> WorkFinished:
    rig.device.register(one)
    return rig.end_of(Load(rig.gpu, name, one.key, (1, 4), True))


def fetch(rig: Rig, one: Model, copied: tuple[str, ...] = LAYERS[:4], layers: int = 5) -> Fetch:
    steps = [
        LoadStep(layer, WeightPath.COPY if layer in copied else WeightPath.HOST)
        for layer in LAYERS[:layers]
    ]
    return Fetch(rig.gpu, "p", one.key, LoadPlan(tuple(steps), True, 1.0, 1.0))


def answers(rig: Rig, one: Model, name: str = "p") -> list[list[object]]:
    finished = rig.run(rig.floats(one, ROW), name=name)
    found = rig.values(finished)
    rig.free(finished)
    return found


def test_weights_are_fetched_used_given_back_and_fetched_again(rig: Rig) -> None:
    assert rig.carve("p").failure is None
    for one in (ONE, OTHER):
        assert cold(rig, one).failure is None
    for copied in (LAYERS[:4], LAYERS[:1], ()):
        for one in (ONE, OTHER):
            assert rig.end_of(fetch(rig, one, copied)).failure is None
            assert answers(rig, one) == [EIGHTFOLD]
            assert rig.end_of(Evict(rig.gpu, one.key, (0, 2, 3))).failure is None
            assert answers(rig, one) == [EIGHTFOLD]


def test_batches_may_follow_a_fetch_at_once_in_any_partition(rig: Rig) -> None:
    for name in ("p", "q"):
        assert rig.carve(name).failure is None
        assert cold(rig, ONE, name).failure is None
    work = [fetch(rig, ONE)]
    work += [rig.batch(rig.floats(ONE, ROW), name=name) for name in "pqpq"]  # type: ignore[misc]
    for one in work:
        rig.do(one)
    rig.wait(lambda: len(rig.finished) >= len(work) + 4)
    ended = [one for one in rig.finished if one.work in work]
    assert len(ended) == len(work)
    assert [rig.values(one) for one in ended if one.outputs] == [[EIGHTFOLD]] * 4


def test_weights_come_over_two_links_as_planned(pair: Rig) -> None:
    assert pair.carve("p").failure is None and cold(pair, ONE).failure is None
    for peers in ((), ("2", "3"), LAYERS[:4]):
        plan = fetch(pair, ONE).plan
        steps = tuple(
            LoadStep(one.layer, WeightPath.PEER, 1) if one.layer in peers else one
            for one in plan.steps
        )
        work = Fetch(pair.gpu, "p", ONE.key, replace(plan, steps=steps))
        assert pair.end_of(work).failure is None
        assert answers(pair, ONE) == [EIGHTFOLD]
        assert pair.end_of(Evict(pair.gpu, ONE.key, (0, 1, 2, 3))).failure is None


def test_what_cannot_be_is_said_in_plain_words(rig: Rig) -> None:
    def refusal(work: Fetch | Evict) -> str:
        failure = rig.end_of(work).failure
        assert failure is not None and not failure.fatal
        return failure.detail

    assert rig.carve("p").failure is None
    assert "no process" not in refusal(fetch(rig, ONE))
    rig.load(OTHER)
    assert "come and go" in refusal(fetch(rig, OTHER))
    assert "come and go" in refusal(Evict(rig.gpu, OTHER.key, (0,)))
    assert cold(rig, ONE).failure is None
    assert "measure it" in refusal(fetch(rig, ONE, layers=4))
    assert answers(rig, ONE) == [EIGHTFOLD]


def test_a_model_that_left_everywhere_holds_nothing(rig: Rig) -> None:
    assert rig.carve("p").failure is None
    for _ in range(2):
        assert cold(rig, ONE).failure is None
        assert rig.end_of(fetch(rig, ONE)).failure is None
        rig.device.cancel_fetch(ONE.key)
        assert rig.unload(ONE).failure is None
    assert rig.end_of(Evict(rig.gpu, ONE.key, (0,))).failure is not None


def test_a_gpu_without_a_budget_says_so(make_rig: MakeRig) -> None:
    plain = make_rig("streams")
    assert plain.carve("p").failure is None
    assert "no budget" in refusal(cold(plain, ONE))
