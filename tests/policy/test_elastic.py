"""E2bird's schedulers: Algorithms 1 and 2, Figure 10, Table 4; and batching that waits (3.2)."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from hypothesis import given
from hypothesis import strategies as st

from interlace.core.hardware import Fleet, Gpu, Trait
from interlace.core.messages import CopyInputs, Run
from interlace.core.plan import Demand, ElasticBatching, Partition, Plan, Slot
from interlace.core.profile import Profile
from interlace.core.request import Batch, Request
from interlace.perf.worker_sizes import naive
from interlace.policy.base import System
from interlace.policy.catalog import resolve as row
from interlace.policy.decision import Dispatch
from interlace.policy.dispatchers.dynamic_batching import DynamicBatching
from interlace.policy.dispatchers.elastic import alive_sizes, elastic, naive_elastic
from interlace.policy.planners.e2bird import naive_engine, searched_engine
from tests.builders import World, line_profile

#: Table 4 as sizes, largest first.
TABLE_4 = {4: (4,), 8: (8,), 16: (8, 4, 4), 32: (16, 8, 8)}


@dataclass(frozen=True)
class Worker:
    id: str
    slots: tuple[Slot, ...]
    rows_running: int = 0
    accepting: bool = True

    @property
    def running(self) -> Batch | None:
        request = Request(0, self.slots[0].model, 0.0, 1.0, self.rows_running)
        return Batch(0, request.model, (request,), self.rows_running) if self.rows_running else None

    def takes(self, now_ms: float) -> bool:
        return self.accepting and self.running is None


@dataclass(frozen=True)
class Pending:
    rows: int
    arrived_ms: float = 0.0
    complete: bool = False
    behind: int = 0  #: rows that wait and cannot be launched yet

    @property
    def head(self) -> Pending | None:
        return self if self.rows else None


@dataclass(frozen=True)
class Gpu0:
    """One accelerator at one instant, as far as these dispatchers look."""

    partitions: tuple[Worker, ...]
    pending: dict[str, Pending]
    known: dict[str, ElasticBatching] = field(default_factory=dict)

    def queue(self, model: str) -> Pending:
        return self.pending[model]

    def waiting_rows(self, model: str) -> int:
        return self.pending[model].rows + self.pending[model].behind

    @property
    def plan(self) -> Plan:
        return Plan(elastic=self.known)


def workers(*sizes: int, busy: tuple[int, ...] = (), model: str = "m") -> tuple[Worker, ...]:
    """Workers of these sizes; those at places ``busy`` run a full batch."""
    return tuple(
        Worker(f"{model}{place}", (Slot(model, size, 0.0),), size if place in busy else 0)
        for place, size in enumerate(sizes)
    )


def rows_of(dispatch: Dispatch) -> list[int]:
    return [launch.rows for launch in dispatch.launches]


def algorithm_1(n: int, cur_inf: int, max_inf: int, idle: list[int]) -> list[int]:
    """The published loop, with its pointer into the queue."""
    queue = sorted(idle, reverse=True)
    r, at, run = min(n, max_inf - cur_inf), 0, []
    while r > 0 and at < len(queue):
        if r >= queue[at]:
            r -= queue[at]
            run.append(queue.pop(at))
        else:
            at += 1
    return run


@given(
    st.integers(1, 48),
    st.lists(st.integers(0, 9), max_size=6, unique=True),
    st.integers(0, 60),
    st.integers(1, 64),
)
def test_the_plain_rule_is_algorithm_1(most: int, busy: list[int], n: int, max_inf: int) -> None:
    sizes = naive(most)
    there = workers(*sizes, busy=tuple(busy))
    alive = sum(worker.rows_running for worker in there)
    view = Gpu0(there, {"m": Pending(n)}, {"m": ElasticBatching(max_inf)})
    dispatch = naive_elastic(view, 0.0)  # type: ignore[arg-type]
    idle = [w.slots[0].batch for w in there if not w.rows_running]
    assert rows_of(dispatch) == algorithm_1(n, alive, max_inf, idle)
    by_id = {worker.id: worker for worker in there}
    assert all(by_id[one.partition].slots[0].batch == one.rows for one in dispatch.launches)
    assert len({one.partition for one in dispatch.launches}) == len(dispatch.launches)


def test_figure_10() -> None:
    """Eight of twelve run; the four that are left go to the first idle worker, of four."""
    there = workers(*naive(32)[:5])  # 1, 1, 2, 4, 8
    first = naive_elastic(Gpu0(there, {"m": Pending(8)}), 0.0)  # type: ignore[arg-type]
    assert rows_of(first) == [8]
    later = workers(*naive(32)[:5], busy=(4,))
    second = naive_elastic(Gpu0(later, {"m": Pending(4)}), 0.0)  # type: ignore[arg-type]
    assert [(one.partition, one.rows) for one in second.launches] == [("m3", 4)]


def test_maxinf_bounds_what_is_in_flight() -> None:
    there = workers(1, 1, 2, 4, 8, 16, busy=(5, 4))
    view = Gpu0(there, {"m": Pending(32)}, {"m": ElasticBatching(32)})
    assert rows_of(naive_elastic(view, 0.0)) == [4, 2, 1, 1]  # type: ignore[arg-type]
    view = replace(view, known={"m": ElasticBatching(24)})
    assert rows_of(naive_elastic(view, 0.0)) == []  # type: ignore[arg-type]


def test_the_workers_that_a_load_keeps_alive() -> None:
    there = (16, 8, 8, 4, 2, 1)
    assert alive_sizes(TABLE_4, 40, there) == (16, 8, 8)
    assert alive_sizes(TABLE_4, 16, there) == (8, 4, 4)
    assert alive_sizes(TABLE_4, 7, there) == (4,)
    assert alive_sizes(TABLE_4, 3, there) == (2, 1)
    assert alive_sizes({}, 3, there) == there


def test_e_ebird_uses_the_three_large_workers_under_high_load() -> None:
    """Section 8.4: (8, 8, 16), and of the engine of Table 4 no worker of four."""
    there = workers(1, 2, 4, 8, 8, 16)
    known = {"m": ElasticBatching(32, TABLE_4)}
    high = elastic(Gpu0(there, {"m": Pending(32)}, known), 0.0)  # type: ignore[arg-type]
    assert rows_of(high) == [16, 8, 8]
    low = elastic(Gpu0(there, {"m": Pending(3)}, known), 0.0)  # type: ignore[arg-type]
    assert rows_of(low) == [2, 1]
    middle = elastic(Gpu0(there, {"m": Pending(12)}, known), 0.0)  # type: ignore[arg-type]
    assert rows_of(middle) == [8]


def test_nothing_waits_for_workers_that_are_too_large() -> None:
    """Seven rows before the ring's end are no load of eight, whatever waits behind it."""
    there = workers(1, 2, 4, 8, 8, 16, busy=(5,))
    known = {"m": ElasticBatching(32, TABLE_4)}
    cut = Gpu0(there, {"m": Pending(7, behind=9, complete=True)}, known)
    assert rows_of(elastic(cut, 0.0)) == [4, 2, 1]  # type: ignore[arg-type]
    open_ended = Gpu0(there, {"m": Pending(7, behind=9)}, known)
    assert rows_of(elastic(open_ended, 0.0)) == []  # type: ignore[arg-type]
    alone = Gpu0(workers(1, 2, 4, 8, 8, 16), {"m": Pending(3, behind=40)}, known)
    assert rows_of(elastic(alone, 0.0)) == [2, 1]  # type: ignore[arg-type]


def test_models_on_one_accelerator_share_it_and_the_oldest_chooses_first() -> None:
    there = workers(1, 1, 2, 4, model="a") + workers(1, 1, 2, 4, 8, model="b")
    known = {"a": ElasticBatching(8), "b": ElasticBatching(16)}
    both = {"a": Pending(4, arrived_ms=5.0), "b": Pending(16, arrived_ms=9.0)}
    dispatch = naive_elastic(Gpu0(there, both, known), 10.0)  # type: ignore[arg-type]
    assert [(one.model, one.rows) for one in dispatch.launches] == [("a", 4), ("b", 8)]


@dataclass(frozen=True)
class Fixed:
    plan: Plan

    def __call__(self, *asked: object) -> Plan:
        return self.plan


def pooled(
    *sizes: int, name: str = "nebird", best: dict[int, tuple[int, ...]] | None = None
) -> World:
    gpu = Gpu("g0", "test", 2, 10**9, (50, 100), frozenset({Trait.INPUT_POOL}))
    parts = tuple(
        Partition(f"g0:{i}", "g0", 100, (Slot("m", size, 1.0),)) for i, size in enumerate(sizes)
    )
    plan = Plan(parts, overlapping=True, elastic={"m": ElasticBatching(32, best or {})})
    system: System = replace(row(name), planner=Fixed(plan))
    world = World({"m": line_profile("m", speedup=1.0)}, Fleet((gpu,)), system)
    world.deploy({"m": 1_000.0})
    world.run(500)
    return world


def batches(world: World) -> list[Run]:
    return [c for _, _, commands in world.log for c in commands if isinstance(c, Run)]


def test_a_world_of_workers_launches_windows_and_answers_all() -> None:
    world = pooled(1, 1, 2, 4, 8, 16)
    sent = [world.send("m", 900.0) for _ in range(12)]
    world.run(300)
    assert all(world.reply_of(one).outcome.value == "ok" for one in sent)
    assert [run.batch.slot for run in batches(world)][:2] == [0, 1]
    stages = [c for _, _, commands in world.log for c in commands if isinstance(c, CopyInputs)]
    assert [stage.slot for stage in stages] == list(range(12))
    assert len({run.partition for run in batches(world)}) > 2


def test_a_batch_that_fails_is_tried_again_outside_the_ring() -> None:
    world = pooled(1, 4)
    world.devices["g0"].fail_next(Run, "poison")
    sent = [world.send("m", 900.0) for _ in range(3)]
    world.run(300)
    assert all(world.reply_of(one).outcome.value == "ok" for one in sent)
    assert [run.batch.slot is None for run in batches(world)].count(True) == 1


def test_what_has_another_shape_runs_from_where_it_lies() -> None:
    world = pooled(1, 1, 4)
    sent = [world.send("m", 900.0, shape=shape) for shape in ("s", "t", "s", "t")]
    world.run(300)
    assert all(world.reply_of(one).outcome.value == "ok" for one in sent)
    ran = [(run.batch.requests[0].shape, run.batch.slot) for run in batches(world)]
    assert ran[:2] == [("s", 0), ("t", None)]
    assert all(slot is not None for shape, slot in ran if shape == "s")


def waiting(dispatcher: DynamicBatching) -> World:
    gpu = Gpu("g0", "test", 2, 10**9, (50, 100))
    plan = Plan((Partition("g0:0", "g0", 100, (Slot("m", 32, 1.0),)),))
    system = replace(row("tfserving"), planner=Fixed(plan), dispatcher=dispatcher)
    world = World({"m": line_profile("m", speedup=1.0)}, Fleet((gpu,)), system)
    world.deploy({"m": 200.0})
    world.run(500)
    return world


def test_opt_wait_waits_for_company_and_no_longer() -> None:
    world = waiting(DynamicBatching())
    first = world.send("m", 200.0)
    world.run(20.0)
    second = world.send("m", 200.0)
    world.run(100.0)
    assert [run.batch.rows for run in batches(world)] == [2]
    assert 29.9 < world.reply_of(first).timing.queue_ms < 30.2, "15 % of 200 ms"
    assert 9.9 < world.reply_of(second).timing.queue_ms < 10.2


def test_a_full_batch_does_not_wait() -> None:
    world = waiting(DynamicBatching())
    sent = [world.send("m", 200.0) for _ in range(33)]
    world.run(100.0)
    assert [run.batch.rows for run in batches(world)] == [32, 1]
    assert world.reply_of(sent[0]).timing.queue_ms == 0.0


def test_no_wait_begins_at_once() -> None:
    world = waiting(DynamicBatching(wait_ms=0.0))
    first = world.send("m", 200.0)
    world.run(100.0)
    assert world.reply_of(first).timing.queue_ms == 0.0


def test_static_batches_take_as_long_as_full_ones() -> None:
    padded, opt = waiting(DynamicBatching(padded=True)), waiting(DynamicBatching())
    replies = [world.send("m", 200.0) for world in (padded, opt)]
    for world in (padded, opt):
        world.run(150.0)
    assert abs(padded.reply_of(replies[0]).timing.infer_ms - (2.0 + 32.0)) < 1e-6
    assert abs(opt.reply_of(replies[1]).timing.infer_ms - 3.0) < 1e-6
    assert batches(padded)[0].batch.rows == 1


def _plan(name: str, profiles: dict[str, Profile], slo_ms: float, gpus: int = 1) -> Plan:
    kind = Gpu("", "test", 2, 10**9, (50, 100))
    fleet = Fleet(tuple(replace(kind, id=f"g{i}") for i in range(gpus)))
    demand = [Demand(model, 10.0, slo_ms) for model in profiles]
    return row(name).planner(demand, fleet, profiles, Plan())


def test_the_plan_of_n_ebird_is_its_list() -> None:
    plan = _plan("nebird", {"m": line_profile("m")}, 500.0)
    assert plan.overlapping and {p.share_pct for p in plan.partitions} == {100}
    assert sorted(p.slots[0].batch for p in plan.partitions) == [1, 1, 2, 4, 8, 16]
    assert plan.elastic["m"].max_rows == 32


def test_maxinf_is_the_largest_batch_in_time() -> None:
    plan = _plan("nebird", {"m": line_profile("m")}, 9.0)  # (2 + b) * 0.6 <= 9
    assert plan.elastic["m"].max_rows == 13
    assert sorted(p.slots[0].batch for p in plan.partitions) == list(naive(13))


def test_the_plan_of_e_ebird_has_a_worker_for_every_configuration() -> None:
    plan = _plan("e2bird", {"m": line_profile("m")}, 500.0)
    there = sorted(p.slots[0].batch for p in plan.partitions)
    for sizes in plan.elastic["m"].best.values():
        assert all(there.count(size) >= sizes.count(size) for size in sizes)
    assert there[0] == 1 and 2 in there
    assert sum(p.slots[0].rows_per_s for p in plan.partitions) > 10.0


def test_tight_models_have_no_worker_they_could_not_use() -> None:
    for make in (naive_engine, searched_engine):
        for slo_ms in (1.9, 2.5, 4.0, 7.0):
            surface_of = line_profile("m")
            plan = _plan("nebird" if make is naive_engine else "e2bird", {"m": surface_of}, slo_ms)
            known = plan.elastic.get("m")
            if known is None:
                continue
            assert all(p.slots[0].batch <= known.max_rows for p in plan.partitions)
            assert any(p.slots[0].batch == 1 for p in plan.partitions)
