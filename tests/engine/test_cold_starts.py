"""More models than memory: what is fetched when, and what becomes of those who wait."""

from dataclasses import replace
from typing import TypeVar

import pytest

from interlace.core.hardware import Fleet
from interlace.core.loading import HostLinks, HostTier
from interlace.core.messages import (
    CancelFetch,
    Deployment,
    Evict,
    Failure,
    Fetch,
    ModelsDeployed,
    Run,
    TierChanged,
)
from interlace.core.plan import Demand
from interlace.core.profile import LayerProfile, Profile
from interlace.core.request import Outcome
from interlace.policy.catalog import resolve
from interlace.policy.cold_starts.catalog import COLD_POLICIES
from tests.builders import World, line_profile, machine

_LAYERS = 4
_T = TypeVar("_T")


def layered(name: str, nbytes: int = 100, copy_ms: float = 5.0) -> Profile:
    """A model of four layers of ``nbytes``; a batch takes about 4 ms, a copy of a layer more."""
    plain = line_profile(name, 3.0, 1.0)
    layers = tuple(
        LayerProfile(f"{index}", nbytes, copy_ms, 1.0, 40.0, "Linear") for index in range(_LAYERS)
    )
    return replace(plain, weights_bytes=_LAYERS * nbytes, activation_bytes=1, layers=layers)


def cold_world(
    budget: int,
    cold: str = "pipeswitch",
    names: str = "ab",
    gpus: int = 1,
    pinned: str = "",
    keep_ms: float = 0.0,
    host: HostTier | None = None,
) -> World:
    (plain,) = machine().gpus
    gpu = replace(plain, weights_bytes=budget, host=host)
    fleet = Fleet(tuple(replace(gpu, id=f"g{n}") for n in range(gpus)))
    row = replace(resolve("interlace"), cold=COLD_POLICIES[cold])
    world = World({name: layered(name) for name in names}, fleet, row)
    deployments = tuple(
        Deployment(
            Demand(name, 0.0, 200.0), world.profiles[name], pinned=name in pinned, keep_ms=keep_ms
        )
        for name in names
    )
    world.runtime.deliver(ModelsDeployed(deployments))
    world.run(500.0)
    return world


def sent(world: World, kind: type[_T]) -> list[tuple[float, _T]]:
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


def test_what_is_on_the_disk_is_promised_as_late_as_it_comes() -> None:
    """A disk that reads a model in 100 ms, and host memory for one."""
    world = cold_world(400, names="abc", host=HostTier(400, 4.0))
    assert world.reply_of(world.send("a", 90.0)).outcome is Outcome.REFUSED
    world.run(300.0)  # what was refused is brought all the same
    done = world.send("a", 90.0)
    world.run(50.0)
    assert world.reply_of(done).outcome is Outcome.OK
    began = world.clock.now_ms()
    both = [world.send(model, slo_ms) for model, slo_ms in (("b", 120.0), ("c", 250.0))]
    assert world.reply_of(world.send("c", 150.0)).outcome is Outcome.REFUSED  # it is behind b
    world.run(400.0)
    assert [world.reply_of(one).outcome for one in both] == [Outcome.OK, Outcome.OK]
    ended = [at - began for one in both for at, r in world.replies if r.request.id == one.id]
    assert 100.0 < ended[0] < 120.0 and 200.0 < ended[1] < 250.0


def test_what_a_device_has_on_disk_only_comes_by_another_plan_and_is_promised_later() -> None:
    """A table of which a row is read, and layers that the disk brings twenty times as slowly."""
    plain = layered("a")
    table, *rest = plain.layers
    layers = (
        replace(table, run_host_ms=1.0, copy_disk_ms=20.0, run_disk_ms=1.5),
        *(replace(one, run_host_ms=1.0, copy_disk_ms=20.0, run_disk_ms=70.0) for one in rest),
    )
    (gpu,) = machine().gpus
    fleet = Fleet((replace(gpu, id="g0", weights_bytes=400, links=HostLinks(takes_cores=True)),))
    world = World({"a": replace(plain, layers=layers)}, fleet, resolve("interlace"))
    demand = Demand("a", 0.0, 200.0)
    world.runtime.deliver(ModelsDeployed((Deployment(demand, world.profiles["a"]),)))
    world.run(500.0)
    answered = world.send("a", 20.0)
    world.run(50.0)
    assert world.reply_of(answered).outcome is Outcome.OK
    assert all(not one.plan.brought for _, one in sent(world, Fetch))
    # All was read where it lies, which is on disk from now on: most of it has to be brought.
    world.runtime.deliver(TierChanged("g0", "a", True))
    assert world.reply_of(world.send("a", 40.0)).outcome is Outcome.REFUSED
    world.run(200.0)  # what was refused is brought all the same
    assert sent(world, Fetch)[-1][1].plan.brought == (1, 2, 3)
    again = world.send("a", 20.0)
    world.run(50.0)
    assert world.reply_of(again).outcome is Outcome.OK


@pytest.mark.parametrize("early", [False, True], ids=["it ran", "before it is known"])
def test_what_is_read_where_it_lies_on_disk_is_promised_as_the_disk_reads(early: bool) -> None:
    plain = layered("a")
    layers = tuple(
        replace(one, run_host_ms=1.0, copy_disk_ms=90.0, run_disk_ms=21.0) for one in plain.layers
    )
    (gpu,) = machine().gpus
    fleet = Fleet((replace(gpu, id="g0", weights_bytes=400, links=HostLinks(takes_cores=True)),))
    world = World({"a": replace(plain, layers=layers)}, fleet, resolve("interlace"))
    world.runtime.deliver(
        ModelsDeployed((Deployment(Demand("a", 0.0, 200.0), world.profiles["a"]),))
    )
    if early:  # its device looks at files as soon as a worker has opened them
        while not world.state.weights_on:
            world.run(1.0)
        assert not world.state.weights_on["g0"].models
        world.runtime.deliver(TierChanged("g0", "a", True))
    world.run(500.0)
    if not early:
        first = world.send("a", 20.0)
        world.run(50.0)
        assert world.reply_of(first).outcome is Outcome.OK
        world.runtime.deliver(TierChanged("g0", "a", True))
    assert world.reply_of(world.send("a", 40.0)).outcome is Outcome.REFUSED
    before = len(sent(world, Fetch))
    world.run(200.0)  # its device is told to read it, whoever asks again
    assert [one.plan.brought for _, one in sent(world, Fetch)[before - 1 :]] == [()]
    again = world.send("a", 20.0)
    world.run(50.0)
    assert world.reply_of(again).outcome is Outcome.OK


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


def test_requests_of_a_warm_model_go_before_it_leaves() -> None:
    """A B A A C becomes A A A B C: three loads, not five."""
    world = cold_world(400, names="abc")
    requests = []
    for model in "abaac":
        requests.append(world.send(model, 200.0))
        world.run(3.0)
    world.run(300.0)
    assert [world.reply_of(one).outcome for one in requests] == [Outcome.OK] * 5
    assert [one.model for _, one in sent(world, Fetch)] == ["a", "b", "c"]


def test_a_cold_model_is_not_passed_over_for_ever() -> None:
    world = cold_world(400)
    start = world.clock.now_ms()
    world.send_at([start + 2.0 * n for n in range(200)], "a", 300.0)
    world.run(50.0)
    assert world.state.models["a"].weights["g0"].warm
    cold = world.send("b", 200.0)
    world.run(600.0)
    assert world.reply_of(cold).outcome is Outcome.OK, "passed for half of the time that it had"
    assert world.runtime.unanswered == 0


def test_a_fetch_that_nobody_waits_for_is_cancelled() -> None:
    world = cold_world(400)
    gone = world.send("a", 200.0)
    world.run(6.0)
    world.runtime.cancel(gone)
    ((cancelled, _),) = sent(world, CancelFetch)
    assert cancelled == world.clock.now_ms()
    world.run(1.0)
    place = world.state.weights_on["g0"]
    assert place.free_bytes == 400 and not place.fetches
    assert world.devices["g0"].weights.held_bytes == 0
    later = world.send("b", 200.0)
    world.run(100.0)
    assert world.reply_of(later).outcome is Outcome.OK


def test_a_fetch_that_fails_is_made_again_once() -> None:
    world = cold_world(400, "copy")
    weights = world.devices["g0"].weights
    weights.fail_next(Failure("bad sectors"))
    first = world.send("a", 300.0)
    world.run(100.0)
    assert world.reply_of(first).outcome is Outcome.OK
    for _ in range(2):
        weights.fail_next(Failure("bad sectors"))
    second = world.send("b", 300.0)
    world.run(100.0)
    error = world.reply_of(second).error
    assert world.reply_of(second).outcome is Outcome.FAILED and error is not None
    assert error.detail == "its weights could not be brought: bad sectors"
    third = world.send("b", 300.0)
    world.run(100.0)
    assert world.reply_of(third).outcome is Outcome.OK


def test_what_loads_again_for_too_long_is_told_how_late_it_would_end() -> None:
    """A load takes 20 ms, and fails once; the caller hears then that it would be 15 ms late."""
    world = cold_world(400, "copy")
    world.devices["g0"].weights.fail_next(Failure("bad sectors"))
    request = world.send("a", 30.0)
    world.run(29.0)
    reply = world.reply_of(request)
    assert reply.outcome is Outcome.EXPIRED and reply.error is not None
    assert reply.error.late_ms is not None and 10.0 < reply.error.late_ms < 20.0


def test_a_batch_that_was_sent_ahead_fails_with_its_fetch_and_is_made_again() -> None:
    world = cold_world(400)
    world.devices["g0"].weights.fail_next(Failure("bad sectors"))
    request = world.send("a", 300.0)
    world.run(100.0)
    assert [run.batch.attempt for _, run in sent(world, Run)] == [1, 2]
    assert world.reply_of(request).outcome is Outcome.OK


def test_what_cannot_be_in_time_is_refused_as_cold_and_loaded_for_the_next() -> None:
    world = cold_world(400)
    early = world.send("a", 15.0)
    error = world.reply_of(early).error
    assert error is not None and "'a' is cold: its weights are there in 17.0 ms" in error.detail
    assert error.retry_after_ms == pytest.approx(17.0)
    world.run(21.0)
    again = world.send("a", 15.0)
    world.run(20.0)
    assert world.reply_of(again).outcome is Outcome.OK


def test_pinned_models_come_first_and_stay() -> None:
    world = cold_world(800, names="abc", pinned="a")
    assert world.engine.snapshot().models["a"].weights["g0"].state == "resident"
    for model in "bcb":
        request = world.send(model, 200.0)
        world.run(300.0)
        assert world.reply_of(request).outcome is Outcome.OK
    assert [one.model for _, one in sent(world, Evict)] == ["b", "c"]


def test_what_ran_lately_is_kept() -> None:
    world = cold_world(400, keep_ms=100.0)
    world.send("a", 200.0)
    world.run(50.0)
    other = world.send("b", 300.0)
    world.run(300.0)
    ((ran, _), _) = sent(world, Run)
    ((left, _),) = sent(world, Evict)
    assert left - ran >= 100.0
    assert world.reply_of(other).outcome is Outcome.OK


def test_a_model_that_no_budget_holds_fails_with_figures() -> None:
    world = cold_world(399)
    assert {one.status for one in world.statuses} == {"failed"}
    assert "its weights take 0.0 MB" in world.statuses[0].detail


def test_pinned_weights_leave_less_for_others() -> None:
    world = cold_world(700, pinned="a")
    (failed,) = [one for one in world.statuses if one.status == "failed"]
    assert failed.model == "b" and "are pinned: give it more (--memory)" in failed.detail
    request = world.send("a", 200.0)
    world.run(50.0)
    assert world.reply_of(request).outcome is Outcome.OK


def test_an_accelerator_that_leaves_takes_what_it_held() -> None:
    world = cold_world(400, gpus=2)
    first = world.send("a", 200.0)
    world.run(10.0)
    ((_, fetch),) = sent(world, Fetch)
    world.runtime.leave(fetch.gpu)
    world.run(2_000.0)
    assert world.reply_of(first).outcome is not Outcome.REFUSED
    request = world.send("a", 200.0)
    world.run(100.0)
    assert world.reply_of(request).outcome is Outcome.OK
    assert {one.gpu for _, one in sent(world, Fetch)} == {"g0", "g1"}


def test_a_load_that_waits_is_counted_on_one_accelerator() -> None:
    """Eight models of 20 ms, four on each of two links, and 4 ms to run: all are there in 84."""
    names = "abcdefgh"
    world = cold_world(1_600, names=names, gpus=2)
    asked = [world.send(name, 88.0 + place) for place, name in enumerate(names)]
    world.run(150.0)
    assert [world.reply_of(one).outcome for one in asked] == [Outcome.OK] * 8


def test_what_comes_unasked_delays_nobody_by_more_than_a_layer() -> None:
    """What was refused comes unasked, in 20 ms; who is asked meanwhile has the link instead."""
    world = cold_world(800)
    assert world.reply_of(world.send("a", 10.0)).outcome is Outcome.REFUSED
    world.run(2.0)
    ((_, unasked),) = sent(world, Fetch)
    asked = world.send("b", 35.0)
    world.run(50.0)
    assert unasked.model == "a" and world.reply_of(asked).outcome is Outcome.OK


def test_loads_follow_each_other_on_a_link() -> None:
    """The second is sent a little before the first has ended: the link is never idle."""
    world = cold_world(800, names="abc")
    for model in "ab":
        world.send(model, 300.0)
    world.run(100.0)
    (first, _), (second, _) = sent(world, Fetch)
    assert second - first == pytest.approx(19.0)
    ended = max(at for at, reply in world.replies)
    assert ended - first == pytest.approx(41.0)


def test_without_a_budget_nothing_is_fetched() -> None:
    (gpu,) = machine().gpus
    world = World({"a": layered("a")}, Fleet((gpu,)))
    world.deploy({"a": 50.0})
    world.run(500.0)
    request = world.send("a", 50.0)
    world.run(50.0)
    assert world.reply_of(request).outcome is Outcome.OK
    assert not sent(world, Fetch) and not world.engine.snapshot().models["a"].weights


def test_a_partition_that_only_begins_to_load_a_model_keeps_none_of_its_weights() -> None:
    """The last one that had it loaded took them along."""
    world = cold_world(400, names="a")
    world.send("a", 200.0)
    world.run(100.0)
    device = world.devices["g0"]
    first, second = sorted(device.partitions)
    device.kill(first)
    while (
        world.state.partitions.get(first) is None or not world.state.partitions[first].model_states
    ):
        world.run(1.0)
    assert not world.state.partitions[first].loaded("a")
    device.kill(second)
    assert device.weights.held_bytes == 0
    world.run(500.0)
    again = world.send("a", 200.0)
    world.run(100.0)
    assert world.reply_of(again).outcome is Outcome.OK
    assert len(sent(world, Fetch)) == 2
