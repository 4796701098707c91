"""Replicas in several zones."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from interlace.core.hardware import Fleet
from interlace.core.plan import Partition, Plan, Slot
from interlace.fleet.zones import doubled, spread
from interlace.testing.worlds import FREE


def fleet(nodes: int, gpus: int) -> Fleet:
    return Fleet(tuple(replace(FREE, id=f"n{i}/g{j}") for i in range(nodes) for j in range(gpus)))


def plan(where: dict[str, list[str]]) -> Plan:
    return Plan(
        tuple(
            Partition(f"p{i}", gpu, 20, tuple(Slot(m, 1, 1.0) for m in sorted(set(models))))
            for i, (gpu, models) in enumerate(sorted(where.items()))
        )
    )


def zones_of(found: Plan, zones: dict[str, str]) -> dict[str, set[str]]:
    where: dict[str, set[str]] = {}
    for part in found.partitions:
        for slot in part.slots:
            where.setdefault(slot.model, set()).add(zones[part.gpu.partition("/")[0]])
    return where


def test_two_replicas_come_into_two_zones() -> None:
    zones = {"n0": "left", "n1": "left", "n2": "right"}
    planned = plan({"n0/g0": ["m"], "n1/g0": ["m", "k"]})
    found = spread(planned, fleet(3, 1), zones)
    assert zones_of(found, zones)["m"] == {"left", "right"}


def test_replicas_are_parted_where_the_least_is_loaded_and_parted_for_it() -> None:
    zones = {"n0": "left", "n1": "left", "n2": "right", "n3": "right"}
    one_other = plan({"n0/g0": ["m"], "n1/g0": ["m"], "n2/g0": ["k"]})
    pool = plan({"n0/g0": ["m"], "n1/g0": ["m"], "n1/g1": ["k"], "n2/g0": ["k"], "n2/g1": ["k"]})
    for planned, current in ((one_other, one_other), (pool, Plan())):
        found = spread(planned, fleet(4, 2), zones, current)
        assert zones_of(found, zones)["m"] == {"left", "right"}
        where = {p.gpu for p in found.partitions if p.slots[0].model == "k"}
        assert where == {p.gpu for p in planned.partitions if p.slots[0].model == "k"}


def test_a_guest_in_another_zone_is_no_replica() -> None:
    zones = {"n0": "left", "n1": "left", "n2": "right"}
    planned = plan({"n0/g0": ["m"], "n1/g0": ["m"], "n2/g0": ["k"]})
    parts = {part.gpu: part for part in planned.partitions}
    lent = replace(parts["n2/g0"], slots=(Slot("k", 1, 1.0), Slot("m", 1, 0.0, guest=True)))
    with_guest = replace(planned, partitions=(parts["n0/g0"], parts["n1/g0"], lent))
    hosts = [p.gpu for p in spread(with_guest, fleet(3, 1), zones).partitions if "k" not in str(p)]
    assert {zones[gpu.partition("/")[0]] for gpu in hosts} == {"left", "right"}


def test_what_stands_once_is_doubled_where_an_accelerator_is_left() -> None:
    planned = plan({"n0/g0": ["m", "k"], "n1/g0": ["l"]})
    found = doubled(planned, fleet(3, 1), {})
    assert {part.gpu: len(part.slots) for part in found.partitions} == {
        "n0/g0": 2, "n1/g0": 1, "n2/g0": 2
    }  # fmt: skip
    rates = Counter[str]()
    for part in found.partitions:
        rates.update({slot.model: slot.rows_per_s for slot in part.slots})
    assert rates == {"m": 1.0, "k": 1.0, "l": 1.0}
    assert len({part.id for part in found.partitions}) == 3
    assert doubled(found, fleet(3, 1), {}) == found


def test_what_no_swap_can_part_is_doubled_first() -> None:
    zones = {"n0": "left", "n1": "right"}
    planned = plan({"n0/g0": ["m", "k"], "n0/g1": ["m", "k"], "n0/g2": ["l"]})
    found = doubled(planned, Fleet(fleet(2, 3).gpus[:4]), zones)
    assert zones_of(found, zones) == {"m": {"left"}, "k": {"left"}, "l": {"left", "right"}}


def test_nothing_is_doubled_within_a_zone_or_on_another_kind() -> None:
    planned = plan({"n0/g0": ["m"]})
    assert doubled(planned, fleet(2, 2), {"n0": "left", "n1": "left"}) == planned
    gpus = tuple(replace(g, kind="k" + g.id[1]) for g in fleet(2, 1).gpus)
    assert doubled(planned, Fleet(gpus), {}) == planned


def test_what_is_apart_already_is_not_moved() -> None:
    zones = {"n0": "left", "n1": "right"}
    planned = plan({"n0/g0": ["m"], "n1/g0": ["m"]})
    assert spread(planned, fleet(2, 2), zones) == planned


def test_accelerators_of_another_kind_are_not_swapped() -> None:
    two = fleet(2, 2)
    gpus = tuple(replace(g, kind="other") if g.id.startswith("n1") else g for g in two.gpus)
    planned = plan({"n0/g0": ["m"], "n0/g1": ["m"]})
    assert spread(planned, Fleet(gpus), {}) == planned


@given(
    nodes=st.integers(1, 4),
    held=st.lists(st.lists(st.sampled_from("abcde"), max_size=3), min_size=1, max_size=8),
    halves=st.lists(st.sampled_from(["left", "right"]), min_size=4, max_size=4),
)
def test_nothing_is_lost_and_no_model_comes_closer_together(
    nodes: int, held: list[list[str]], halves: list[str]
) -> None:
    """Law: accelerators are permuted, and no more models have all their replicas in one zone."""
    there = fleet(nodes, 2)
    zones = {f"n{i}": halves[i] for i in range(nodes)}
    where = {gpu.id: models for gpu, models in zip(there.gpus, held, strict=False) if models}
    before = plan(where)
    after = spread(before, there, zones)
    assert [p.slots for p in after.partitions] == [p.slots for p in before.partitions]
    assert len({p.gpu for p in after.partitions}) == len(after.partitions)
    assert {p.gpu for p in after.partitions} <= {gpu.id for gpu in there.gpus}
    counts = Counter(slot.model for part in before.partitions for slot in part.slots)

    def gathered(found: Plan) -> int:
        return sum(len(z) == 1 and counts[m] > 1 for m, z in zones_of(found, zones).items())

    assert gathered(after) <= gathered(before)
