"""Guests: lent only what a partition's own models leave, and never their promises."""

from collections.abc import Sequence

from hypothesis import given, settings
from hypothesis import strategies as st

from interlace.core.hardware import Fleet, Gpu
from interlace.core.plan import Demand, Partition, Plan, Slot
from interlace.core.request import Outcome
from interlace.packing.lending import with_guests
from interlace.perf.latency import surface
from interlace.perf.memory import holds
from interlace.policy.catalog import resolve
from interlace.sim.arrivals import Gamma, merge_arrivals, poisson
from interlace.sim.record import RunRecord
from interlace.sim.run import simulate
from interlace.sim.scenario import Simulation
from tests.builders import line_profile

MODELS = ("a", "b")
PROFILES = {m: line_profile(m, 2.0 + i, 1.0) for i, m in enumerate(MODELS)}
FLEET = Fleet((Gpu("g0", "test", 2, 10**9, (50, 100)),))
DEMAND = [Demand("a", 150.0, 60.0, 16), Demand("b", 100.0, 80.0, 16)]


def _apart(demand: Sequence[Demand] = DEMAND) -> Plan:
    parts = [Partition(f"p{d.model}", "g0", 50, (Slot(d.model, 8, d.rows_per_s),)) for d in demand]
    return Plan(tuple(parts))


def _run(plan: Plan, rates: tuple[float, float], cv: float = 1.0) -> RunRecord:
    workloads = {m: Gamma(r, cv) if r else poisson(0.0) for m, r in zip(MODELS, rates, strict=True)}
    arrivals = merge_arrivals(workloads, 4.0, 0)
    return simulate(
        Simulation(resolve("interlace"), FLEET, tuple(DEMAND), PROFILES, PROFILES, arrivals, plan)
    )


def _in_time(record: RunRecord, model: str) -> float:
    mine = [one for one in record.served if one.model == model]
    return sum(one.outcome is Outcome.OK for one in mine) / max(1, len(mine))


def test_everyone_is_a_guest_where_it_has_no_turn() -> None:
    plan = with_guests(_apart(), DEMAND, FLEET, PROFILES)
    for before, after in zip(_apart().partitions, plan.partitions, strict=True):
        own = [slot for slot in after.slots if not slot.guest]
        assert tuple(own) == before.slots
        assert {slot.model for slot in after.slots} == set(MODELS)


@settings(max_examples=40, deadline=None)
@given(
    slos=st.lists(st.floats(5.0, 200.0), min_size=2, max_size=2),
    memory=st.integers(4_000, 6_000),
    batch=st.integers(1, 16),
)
def test_a_guests_batch_leaves_its_hosts_their_time(
    slos: list[float], memory: int, batch: int
) -> None:
    demand = [Demand(m, 50.0, slo, 16) for m, slo in zip(MODELS, slos, strict=True)]
    there = Fleet((Gpu("g0", "test", 2, memory, (50, 100)),))
    parts = [Partition(f"p{m}", "g0", 50, (Slot(m, batch, 50.0),)) for m in MODELS]
    plan = with_guests(Plan(tuple(parts)), demand, there, PROFILES)
    held = [(p.share_pct, [slot.model for slot in p.slots]) for p in plan.partitions]
    assert holds(there.gpus[0], held, PROFILES) or plan.partitions == tuple(parts)
    wanted = {one.model: one for one in demand}
    for partition in plan.partitions:
        own_ms = {
            slot.model: surface(PROFILES[slot.model]).latency_ms(slot.batch, 50)
            for slot in partition.slots
            if not slot.guest
        }
        for guest in (slot for slot in partition.slots if slot.guest):
            run_ms = surface(PROFILES[guest.model]).latency_ms(guest.batch, 50)
            assert guest.rows_per_s == 0.0
            for model, ms in own_ms.items():
                assert run_ms + ms <= wanted[model].slo_ms + 1e-9


def test_a_burst_uses_what_others_leave() -> None:
    """Alone, half the machine is too little for a; lent the other half it is not."""
    plain, guests = _apart(), with_guests(_apart(), DEMAND, FLEET, PROFILES)
    rates = (1500.0, 0.0)
    assert _in_time(_run(plain, rates), "a") < 0.85
    assert _in_time(_run(guests, rates), "a") > _in_time(_run(plain, rates), "a") + 0.1


def test_who_lends_keeps_its_promises() -> None:
    guests = with_guests(_apart(), DEMAND, FLEET, PROFILES)
    record = _run(guests, (1200.0, 100.0), cv=2.0)
    assert _in_time(record, "b") >= _in_time(_run(_apart(), (1200.0, 100.0), cv=2.0), "b") - 0.01
    assert any(run.partition.endswith("p1") and run.model == "a" for run in record.executions)
