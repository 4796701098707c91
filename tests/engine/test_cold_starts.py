"""More models than memory: what is fetched when, and what becomes of those who wait."""

from __future__ import annotations

from dataclasses import replace

import pytest

from interlace.core.hardware import Fleet
from interlace.core.messages import CancelFetch, Evict, Fetch, Run
from interlace.core.profile import LayerProfile, Profile
from interlace.core.request import Outcome
from interlace.policy.catalog import resolve
from interlace.policy.cold_starts.catalog import COLD_POLICIES
from tests.builders import World, line_profile, machine

_LAYERS = 4


def layered(name: str, nbytes: int = 100, copy_ms: float = 5.0) -> Profile:
    """A model of four layers of ``nbytes``; a batch takes about 4 ms, a copy of a layer more."""
    plain = line_profile(name, 3.0, 1.0)
    layers = tuple(
        LayerProfile(f"{index}", nbytes, copy_ms, 1.0, 40.0, "Linear") for index in range(_LAYERS)
    )
    return replace(plain, weights_bytes=_LAYERS * nbytes, activation_bytes=1, layers=layers)


def cold_world(budget: int, cold: str = "pipeswitch", names: str = "ab") -> World:
    (gpu,) = machine().gpus
    gpu = replace(gpu, weights_bytes=budget)
    row = replace(resolve("interlace"), cold=COLD_POLICIES[cold])
    world = World({name: layered(name) for name in names}, Fleet((gpu,)), row)
    world.deploy({name: 200.0 for name in names})
    world.run(500.0)
    return world


def sent(world: World, kind: type) -> list[tuple[float, object]]:
    return [(at, one) for at, _, commands in world.log for one in commands if isinstance(one, kind)]


def test_a_cold_model_is_fetched_and_answers() -> None:
    world = cold_world(400)
    first = world.send("a", 200.0)
    world.run(100.0)
    assert world.reply_of(first).outcome is Outcome.OK
    ((began, _),) = sent(world, Fetch)
    ((ran, _),) = sent(world, Run)
    # 20 ms of copies, 4 of execution: the batch is sent when it need not wait, and ends with both.
    assert ran - began == pytest.approx(17.0)
    ended = next(at for at, reply in world.replies if reply.request.id == first.id)
    assert ended - began == pytest.approx(20.0 + 1.0)


def test_what_is_not_used_leaves_for_what_is() -> None:
    world = cold_world(400)
    for model in "aba":
        request = world.send(model, 200.0)
        world.run(300.0)
        assert world.reply_of(request).outcome is Outcome.OK
    assert [one.model for _, one in sent(world, Fetch)] == ["a", "b", "a"]
    assert [(one.model, one.layers) for _, one in sent(world, Evict)] == [
        ("a", (0, 1, 2, 3)),
        ("b", (0, 1, 2, 3)),
    ]
    assert not sent(world, CancelFetch)
