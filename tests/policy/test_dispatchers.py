"""What runs now: turns, deadlines, long work that must begin, batches that must not block."""

from itertools import pairwise
from math import inf

import pytest
from msgspec.structs import replace

from interlace.core.messages import Run
from interlace.core.plan import Demand, Partition, Plan, Slot
from interlace.core.request import Callbacks, Outcome
from interlace.policy.base import Planner
from interlace.policy.catalog import resolve as row
from interlace.sim.arrivals import Gamma, merge_arrivals
from interlace.sim.run import simulate
from interlace.sim.scenario import Simulation
from tests.builders import World, line_profile, machine


def _fixed(partitions: tuple[Partition, ...]) -> Planner:
    """A planner that always gives these partitions."""
    return lambda demand, fleet, profiles, current: Plan(partitions)


def _world(
    dispatcher: str,
    partitions: tuple[Partition, ...] | None = None,
    slo_ms: float = 1_000.0,
    **slots: int,
) -> World:
    """A world of one dispatcher; without partitions, one that is the whole machine."""
    shapes = {"quick": (2.0, 0.5), "long": (40.0, 1.0), "other": (2.0, 0.5)}
    profiles = {name: line_profile(name, *shapes[name], speedup=1.0) for name in slots}
    wanted = tuple(Slot(name, batch, 1.0) for name, batch in slots.items())
    whole = (Partition("g0:0", "g0", 100, wanted),)
    system = row(dispatcher)
    world = World(
        profiles,
        machine(),
        system.__class__(
            "test",
            "test",
            _fixed(partitions or whole),
            _fixed(partitions or whole),
            system.dispatcher,
            scaler=system.scaler,
        ),
    )
    world.deploy(dict.fromkeys(slots, slo_ms))
    world.run(500)
    assert len(world.statuses) == len(slots)
    return world


def _order(world: World) -> list[tuple[str, int]]:
    return [
        (command.batch.model, command.batch.rows)
        for _, _, commands in world.log
        for command in commands
        if isinstance(command, Run)
    ]


def test_duty_takes_turns() -> None:
    world = _world("gpulet", quick=4, other=4)
    for _ in range(12):
        world.send("quick", 900.0)
        world.send("other", 900.0)
    world.run(500)
    models = [model for model, _ in _order(world)]
    assert models[1:6] in (["other", "quick"] * 2 + ["other"], ["quick", "other"] * 2 + ["quick"])


@pytest.mark.parametrize(("beside", "most"), [({"other": 4}, 4), ({}, 19)])
def test_batches_are_bounded_by_the_slot_only_where_others_take_turns(
    beside: dict[str, int], most: int
) -> None:
    world = _world("interlace", quick=4, **beside)
    for _ in range(20):
        world.send("quick", 900.0)
    world.run(500)
    assert max(rows for _, rows in _order(world)) == most


def test_the_earliest_deadline_goes_first() -> None:
    world = _world("interlace", quick=1, other=1)
    world.send("quick", 900.0)
    late = world.send("quick", 800.0)
    soon = world.send("other", 300.0)
    world.run(100)
    assert world.reply_of(soon).timing.queue_ms < world.reply_of(late).timing.queue_ms


@pytest.mark.parametrize("lanes", [1, 2], ids=["turns", "overlapping"])
def test_a_model_without_an_slo_has_a_batch_in_every_slo_that_was_assumed(lanes: int) -> None:
    """Its requests may take a minute: by deadline all of another's, which never end, go before."""
    every = (Slot("quick", 4, 1.0), Slot("long", 1, 1.0))
    places = [every] if lanes == 1 else [(slot,) for slot in every]
    whole = tuple(Partition(f"g0:{i}", "g0", 100, slots) for i, slots in enumerate(places))
    world = _world("interlace", whole, slo_ms=400.0, quick=4, long=1)
    for _ in range(8):  # a closed loop: what is answered is asked for again
        world.send("quick", 400.0)
    world.after_reply = lambda reply: reply.request.model == "quick" and world.send("quick", 400.0)
    long = [world.send("long", 60_000.0) for _ in range(4)]
    world.run(2_500)
    ended_ms = [at_ms for at_ms, reply in world.replies if reply.request.model == "long"]
    assert len(ended_ms) == len(long)
    gaps_ms = [after - before for before, after in pairwise([500.0, *ended_ms])]
    served = sum(reply.request.model == "quick" for _, reply in world.replies)
    assert 400.0 <= gaps_ms[0] < 450.0
    assert all(gap in (0.0, 401.0) for gap in gaps_ms[1:])  # with overlap as one batch
    assert all(reply.outcome is Outcome.OK for _, reply in world.replies)
    assert served > 0.85 * 1000.0 * 2.5  # 4 rows take 4 ms; a tenth of the time is the other's


def test_a_stated_priority_goes_before_any_deadline() -> None:
    world = _world("interlace", quick=1, other=1)
    world.send("quick", 900.0)
    soon = world.send("quick", 200.0)
    request = replace(soon, id=world.runtime.next_id(), model="other", priority=1)
    request = replace(request, deadline_ms=request.deadline_ms + 500.0)
    world.runtime.submit(request, Callbacks(world._answered))
    world.run(100)
    assert world.reply_of(request).timing.queue_ms < world.reply_of(soon).timing.queue_ms


def test_long_work_that_must_begin_goes_before_what_can_go_elsewhere() -> None:
    halves = (
        Partition("g0:0", "g0", 50, (Slot("quick", 1, 1.0), Slot("long", 1, 1.0))),
        Partition("g0:1", "g0", 50, (Slot("quick", 1, 1.0),)),
    )
    world = _world("interlace", halves, quick=1, long=1)
    blockers = [world.send("quick", 900.0) for _ in range(2)]  # both are busy for 2.5 ms
    long = world.send("long", 45.0)  # takes 41 ms: must begin within 4 ms
    quick = [world.send("quick", 44.0) for _ in range(2)]
    world.run(200)
    assert world.reply_of(long).outcome.value == "ok"
    assert all(world.reply_of(r).outcome.value == "ok" for r in (*blockers, *quick))


def test_a_batch_does_not_grow_past_the_moment_another_must_begin() -> None:
    world = _world("interlace", quick=32, other=32)
    world.send("other", 900.0)
    for _ in range(30):
        world.send("quick", 20.0)
    tight = world.send("other", 21.0)
    world.run(100)
    assert world.reply_of(tight).outcome.value == "ok"


def test_models_pressed_by_their_own_load_run_the_planned_batches() -> None:
    """All heads are due at once: if each made way for the others, all would run small batches."""
    profiles = {m: line_profile(m, 2.0, 0.2, speedup=1.0) for m in "abc"}
    turns = tuple(Slot(m, 8, 700.0) for m in profiles)
    demand = tuple(Demand(m, 1500.0, 60.0, 32) for m in profiles)
    arrivals = merge_arrivals({m: Gamma(1500.0, 1.0) for m in profiles}, 1.0, 0)
    plan = Plan((Partition("p", "g0", 100, turns),))
    record = simulate(
        Simulation(row("interlace"), machine(), demand, profiles, profiles, arrivals, plan)
    )
    served = sum(one.outcome is Outcome.OK for one in record.served)
    assert served > 0.85 * 1000.0 * 8 / (2.0 + 8 * 0.2)  # of what planned batches alone would give


def test_clockwork_goes_by_the_latest_start() -> None:
    world = _world("clockwork", quick=8, long=8)
    world.send("quick", 900.0)  # 2.5 ms, while the others come
    quick = world.send("quick", 70.0)  # must begin within 67.5 ms
    long = world.send("long", 80.0)  # 41 ms: must begin within 39 ms, though its deadline is later
    world.run(200)
    assert world.reply_of(long).timing.queue_ms < world.reply_of(quick).timing.queue_ms
    assert world.reply_of(quick).outcome.value == "ok"
    assert world.reply_of(long).outcome.value == "ok"


def test_clockwork_idles_for_nobody_as_time_slices_do() -> None:
    waited_ms = {}
    for name in ("clockwork", "temporal"):
        world = _world(name, quick=1, other=1)
        sent = [world.send(model, 990.0) for model in ("quick", "other")]
        world.run(1_000)
        waited_ms[name] = max(world.reply_of(one).timing.queue_ms for one in sent)
    assert waited_ms["clockwork"] == pytest.approx(2.5)  # while the other one runs
    assert waited_ms["temporal"] > 100.0


def test_clockwork_takes_the_largest_batch_that_ends_in_time() -> None:
    world = _world("clockwork", quick=32, other=32)
    world.send("other", 900.0)
    for _ in range(30):
        world.send("quick", 12.3)  # 2.5 ms until it begins, 9.8 ms left: 15 rows
    world.run(100)
    sizes = [rows for model, rows in _order(world) if model == "quick"]
    assert sizes[0] == 15


def test_a_replica_sustains_the_part_that_is_planned_for_it() -> None:
    """Sizes grow with the planned part, not with one over the number of replicas."""
    unlike = (
        Partition("g0:0", "g0", 50, (Slot("quick", 8, 100.0),)),
        Partition("g0:1", "g0", 50, (Slot("quick", 8, 300.0), Slot("other", 8, 100.0))),
    )
    world = _world("interlace", unlike, quick=8, other=8)
    parts = [live.parts for live in world.state.partitions.values()]
    assert parts == [{"quick": 0.25}, {"quick": 0.75, "other": 1.0}]
    for _ in range(400):
        world.send("quick", 900.0)
    world.run(2_500)
    alone, shared = (live.sustaining_rows for live in world.state.partitions.values())
    assert 0.0 < alone["quick"] < shared["quick"] / 3


def test_a_request_with_more_time_than_its_model_promises_waits_no_longer_for_others() -> None:
    alike = tuple(Partition(f"g0:{n}", "g0", 50, (Slot("quick", 8, 200.0),)) for n in range(2))
    world = _world("interlace", alike, 200.0, quick=8)
    for _ in range(200):
        for _ in range(30):
            world.send("quick", 60_000.0)
        world.run(10)
    world.run(300)
    world.send("quick", 60_000.0)
    world.run(2_000)
    ends_ms = [at_ms - reply.request.arrived_ms for at_ms, reply in world.replies]
    assert len(ends_ms) == 6_001 and max(ends_ms) < 250.0


def test_a_model_of_which_nothing_is_planned_sustains_nothing_beside_an_overload() -> None:
    both = (
        Partition("g0:0", "g0", 50, (Slot("quick", 8, 300.0), Slot("other", 8, 0.0))),
        Partition("g0:1", "g0", 50, (Slot("other", 8, 100.0),)),
    )
    world = _world("interlace", both, quick=8, other=8)
    for _ in range(40):
        for _ in range(500):
            world.send("quick", 900.0)
        world.run(100)
        world.send("other", 900.0)
    overloaded, _ = (live.sustaining_rows for live in world.state.partitions.values())
    assert overloaded == {"quick": inf, "other": 0.0}
