"""Elastic partitioning, step by step: knee, required share, best fit, merging, neighbours."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import pytest

from interlace.core.hardware import Fleet, Gpu
from interlace.core.plan import Demand, Plan
from interlace.core.profile import Profile
from interlace.perf.interference import ConstantFactor, CoRunner
from interlace.perf.tables import Tables
from interlace.policy.planners.gpulet import Gpulet
from interlace.testing.worlds import scaled_profile

SHARES = (20, 40, 50, 60, 80, 100)


def profile(model: str, row_ms: float, width_pct: int, fixed_ms: float = 1.0) -> Profile:
    """A model that gains nothing from more than ``width_pct``."""
    return scaled_profile(model, fixed_ms, row_ms, width_pct, 100, SHARES)


def gpus(count: int) -> Fleet:
    return Fleet(tuple(Gpu(f"g{i}", "k", 100, 10_000, SHARES) for i in range(count)))


def plan(
    demand: Sequence[Demand], fleet: Fleet, profiles: Mapping[str, Profile], policy: Gpulet
) -> list[list[tuple[int, tuple[str, ...]]]]:
    made = policy(demand, fleet, profiles, Plan())
    return [
        [(p.share_pct, tuple(s.model for s in p.slots)) for p in made.partitions if p.gpu == g.id]
        for g in fleet.gpus
    ]


def test_the_efficient_share_is_the_knee_of_what_each_share_serves() -> None:
    tables = Tables({"m": profile("m", 1.0, 50)})
    one = Demand("m", 1.0, 100.0)
    rates = [tables.saturated_rows_per_s(one, share) for share in SHARES]
    assert rates[2:] == pytest.approx([rates[2]] * 4)  # a plateau from 50 %
    assert rates[0] < rates[1] < rates[2]
    assert tables.efficient_pct(one, SHARES) == 50


def test_the_required_share_is_the_smallest_that_serves_the_rate() -> None:
    tables = Tables({"m": profile("m", 1.0, 80)})
    one = Demand("m", 1.0, 100.0)
    for share in SHARES[:4]:
        most_rows_per_s = tables.saturated_rows_per_s(one, share)
        assert tables.required_pct(one, most_rows_per_s, SHARES) == share
        assert tables.required_pct(one, most_rows_per_s * 1.01, SHARES) > share  # type: ignore[operator]
    assert tables.required_pct(one, 1e6, SHARES) is None


def test_a_gpu_is_split_to_the_share_that_is_needed_and_the_rest_is_left() -> None:
    profiles = {"a": profile("a", 1.0, 40), "b": profile("b", 1.0, 60)}
    # Their SLOs leave no time for the other's batch, so neither can join the other's cycle.
    a = Demand("a", Tables(profiles).saturated_rows_per_s(Demand("a", 1.0, 20.0), 40) * 0.99, 20.0)
    b = Demand("b", Tables(profiles).saturated_rows_per_s(Demand("b", 1.0, 24.0), 60) * 0.99, 24.0)
    assert plan([a, b], gpus(2), profiles, Gpulet()) == [[(40, ("a",)), (60, ("b",))], []]


def test_a_model_joins_the_cycle_of_another_that_has_time_for_it() -> None:
    profiles = {"a": profile("a", 1.0, 40), "b": profile("b", 1.0, 40)}
    demand = [Demand("a", 10.0, 100.0), Demand("b", 20.0, 100.0)]
    (only, none) = plan(demand, gpus(2), profiles, Gpulet())
    assert [models for _, models in only] == [("a", "b")] and none == []


def test_a_rate_above_what_the_efficient_share_serves_takes_several() -> None:
    profiles = {"a": profile("a", 1.0, 40)}
    most_rows_per_s = Tables(profiles).saturated_rows_per_s(Demand("a", 1.0, 100.0), 40)
    (first, second) = plan([Demand("a", 2.5 * most_rows_per_s, 100.0)], gpus(2), profiles, Gpulet())
    assert [share for share, _ in first] == [40, 60]
    assert len(second) == 1


def test_no_gpu_has_more_glets_than_it_may() -> None:
    profiles = {f"m{i}": profile(f"m{i}", 1.0, 20) for i in range(6)}
    one = Demand("m0", 1.0, 10.0)
    rate = Tables(profiles).saturated_rows_per_s(one, 20) * 0.99
    demand = [Demand(name, rate, 10.0) for name in profiles]
    assert [len(g) for g in plan(demand, gpus(6), profiles, Gpulet())] == [2, 2, 2, 0, 0, 0]
    unbound = plan(demand, gpus(6), profiles, Gpulet(glets_per_gpu=0))
    assert [len(g) for g in unbound][:2] == [5, 1]


@dataclass(frozen=True, slots=True)
class OnlyBeside:
    """Models are slowed beside one model alone, by how many rows it runs."""

    model: str
    by: float

    def __call__(self, runner: CoRunner, neighbours: Sequence[CoRunner]) -> float:
        rows = sum(n.batch for n in neighbours if n.model == self.model)
        return 1.0 + self.by * rows


def test_interference_is_that_of_the_neighbours_there_are_and_of_their_batches() -> None:
    profiles = {"a": profile("a", 1.0, 40), "b": profile("b", 1.0, 60)}
    tables = Tables(profiles)
    a = Demand("a", tables.saturated_rows_per_s(Demand("a", 1.0, 20.0), 40) * 0.9, 20.0)
    b = Demand("b", tables.saturated_rows_per_s(Demand("b", 1.0, 24.0), 60) * 0.9, 24.0)
    together = plan([a, b], gpus(2), profiles, Gpulet(OnlyBeside("someone else", 1.0)))
    assert together == plan([a, b], gpus(2), profiles, Gpulet())
    slows = OnlyBeside("a", 0.02)
    beside = Gpulet(slows)([a, b], gpus(2), profiles, Plan())
    host = next(p for p in beside.partitions if p.slots[0].model == "a")
    slowed = [p for p in beside.partitions if p.gpu == host.gpu and p.slots[0].model == "b"]
    assert 0 < sum(p.slots[0].rows_per_s for p in slowed) < b.rows_per_s  # less of it fits there
    for p in slowed:
        neighbour = CoRunner("a", host.slots[0].batch, host.share_pct)
        factor = slows(CoRunner("b", p.slots[0].batch, p.share_pct), [neighbour])
        run_ms = tables.surface("b").latency_ms(p.slots[0].batch, p.share_pct) * factor
        assert run_ms <= p.duty_ms * (1 + 1e-6) and run_ms + p.duty_ms <= 24.0 * (1 + 1e-6)
    assert not beside.unserved_rows_per_s


def test_a_newcomer_may_not_make_its_neighbour_late() -> None:
    """Slowed by 1.5 both would miss their SLOs; b must leave a's accelerator alone."""
    profiles = {"a": profile("a", 1.0, 40), "b": profile("b", 1.0, 60)}
    a = Demand("a", Tables(profiles).saturated_rows_per_s(Demand("a", 1.0, 20.0), 40) * 0.99, 20.0)
    made = plan([a, Demand("b", 10.0, 4_000.0)], gpus(2), profiles, Gpulet(ConstantFactor(1.5)))
    assert [len(gpu) for gpu in made] == [1, 1]
