"""Pools that nodes part: each node's part is asked for what its hosts are promised."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from interlace.core.gpu_kinds import GPU_KINDS
from interlace.core.hardware import Fleet, Gpu
from interlace.core.plan import Demand, Partition, Plan, Slot
from interlace.fleet.fleet_gpus import node_of
from interlace.fleet.parted_pools import resized
from interlace.packing.batch_options import batch_options, demand_arrays
from interlace.packing.pools import hosts_together
from interlace.perf.latency import surface
from interlace.perf.memory import holds
from interlace.testing.worlds import line_profile

A100 = GPU_KINDS["a100"]
MODELS = [f"m{i}" for i in range(6)]
PROFILES = {
    name: line_profile(name, 4.0 + i, 1.0 + i / 8, weights_bytes=100)
    for i, name in enumerate(MODELS)
}


def fleet(nodes: int, gpus: int, memory_bytes: int = 10**9) -> Fleet:
    return Fleet(
        tuple(
            replace(A100, id=f"n{i}/gpu{j}", memory_bytes=memory_bytes)
            for i in range(nodes)
            for j in range(gpus)
        )
    )


def needed(demand: list[Demand], part: float = 1.0) -> float:
    some = [replace(one, rows_per_s=one.rows_per_s * part) for one in demand]
    options = batch_options(some, [surface(PROFILES[one.model]) for one in some], 50)
    return hosts_together(options, demand_arrays(some))


def parted(demand: list[Demand], there: Fleet, hosts: Mapping[str, int]) -> Plan:
    """So many hosts of all models on each node, two on an accelerator."""
    total, parts = sum(hosts.values()), []
    for node, count in hosts.items():
        own = [gpu.id for gpu in there.gpus if node_of(gpu.id) == node]
        for i in range(count):
            slots = tuple(Slot(one.model, 8, one.rows_per_s / total) for one in demand)
            parts.append(Partition(f"{node}:p{i}", own[i // 2], 50, slots))
    return Plan(tuple(parts))


def rates(plan: Plan, node: str = "") -> Counter[str]:
    found: Counter[str] = Counter()
    for part in plan.partitions:
        for slot in part.slots if node in ("", node_of(part.gpu)) else ():
            found[slot.model] += slot.rows_per_s  # type: ignore[assignment]
    return found


def fits(gpu: Gpu, plan: Plan) -> bool:
    here = [part for part in plan.partitions if part.gpu == gpu.id]
    held = [(part.share_pct, [slot.model for slot in part.slots]) for part in here]
    return gpu.legal([part.share_pct for part in here]) and holds(gpu, held, PROFILES)


@settings(max_examples=60, deadline=None)
@given(
    models=st.integers(2, 6),
    rate=st.floats(1.0, 400.0),
    slo_ms=st.floats(30.0, 300.0),
    hosts=st.lists(st.integers(1, 6), min_size=2, max_size=4),
    gpus=st.integers(3, 8),
    memory_bytes=st.sampled_from([700, 1_500, 10**9]),
)
def test_each_part_is_asked_for_what_its_hosts_keep(
    models: int, rate: float, slo_ms: float, hosts: list[int], gpus: int, memory_bytes: int
) -> None:
    there = fleet(len(hosts), gpus, memory_bytes)
    demand = [Demand(name, rate, slo_ms * (1.0 + i / 4)) for i, name in enumerate(MODELS[:models])]
    before = parted(demand, there, {f"n{i}": count for i, count in enumerate(hosts)})
    if not all(fits(gpu, before) for gpu in there.gpus) or needed(demand) == float("inf"):
        return  # it is full before, or no hosts serve it
    after = resized(before, demand, there, {A100.kind: PROFILES}, Plan())
    assert all(fits(gpu, after) for gpu in there.gpus)
    kept = {part.id: (part.gpu, part.share_pct) for part in after.partitions}
    assert {part.id: kept[part.id] for part in before.partitions} == {
        part.id: (part.gpu, part.share_pct) for part in before.partitions
    }
    total = rates(after)
    assert all(abs(total[one.model] - one.rows_per_s) < 1e-6 * rate for one in demand)
    count = Counter(node_of(part.gpu) for part in after.partitions)
    largest = max(range(len(hosts)), key=lambda i: (hosts[i], f"n{i}"))
    for node in count.keys() - {f"n{largest}"}:
        mine = rates(after, node)
        part = max(mine[one.model] / one.rows_per_s for one in demand)
        assert needed(demand, part) <= count[node] + 1e-6
    part = max(rates(after, f"n{largest}")[one.model] / one.rows_per_s for one in demand)
    if needed(demand, part) > count[f"n{largest}"] + 1e-6:  # then there was no room for more
        one = before.partitions[0]
        more = [replace(one, id="more", gpu=gpu.id) for gpu in there.gpus
                if node_of(gpu.id) == f"n{largest}"]  # fmt: skip
        for extra in more:
            tried = replace(after, partitions=(*after.partitions, extra))
            assert not all(fits(gpu, tried) for gpu in there.gpus)


def test_a_pool_on_one_node_stays_as_it_is_and_so_do_models_alone() -> None:
    there = fleet(2, 4)
    demand = [Demand(name, 100.0, 60.0) for name in MODELS[:3]]
    whole = parted(demand, there, {"n0": 4})
    assert resized(whole, demand, there, {A100.kind: PROFILES}, Plan()) == whole
    alone = parted(demand[:1], there, {"n0": 1, "n1": 4})
    assert resized(alone, demand[:1], there, {A100.kind: PROFILES}, Plan()) == alone


def test_what_stands_in_addition_is_added_there_again() -> None:
    there = fleet(2, 8)
    demand = [Demand(name, 1000.0, 60.0) for name in MODELS]
    plan = parted(demand, there, {"n0": 3, "n1": 9})
    last = replace(plan.partitions[0], id="x", gpu="n0/gpu7")
    current = replace(plan, partitions=(*plan.partitions, last))
    after = resized(plan, demand, there, {A100.kind: PROFILES}, current)
    assert "n0/gpu7" in {part.gpu for part in after.partitions}
