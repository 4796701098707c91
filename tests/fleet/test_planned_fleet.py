"""What a plan would change of a fleet."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from interlace.core.plan import Partition, Plan, Slot
from interlace.fleet.fleet_gpus import node_of
from interlace.fleet.status import planned_fleet
from interlace.testing.worlds import FREE

GPUS = {node: tuple(replace(FREE, id=f"{node}/g{j}") for j in range(2)) for node in "ab"}
_MODELS = st.sets(st.sampled_from("klm"), max_size=3)


@st.composite
def plans(draw: st.DrawFn) -> Plan:
    """Half an accelerator or a whole one with some models on each of four."""
    return Plan(
        tuple(
            Partition(f"{gpu.id}.p{share}", gpu.id, share, tuple(Slot(m, 1, 5.0) for m in models))
            for gpus in GPUS.values()
            for gpu in gpus
            if (models := sorted(draw(_MODELS)))
            for share in (draw(st.sampled_from((50, 100))),)
        )
    )


@given(before=plans(), after=plans())
def test_what_comes_and_goes_leads_from_one_plan_to_the_other(before: Plan, after: Plan) -> None:
    found = planned_fleet(before, after, GPUS)
    for name, node in found.nodes.items():
        now = {s.model for p in before.partitions if node_of(p.gpu) == name for s in p.slots}
        then = {s.model for p in after.partitions if node_of(p.gpu) == name for s in p.slots}
        assert (now | set(node.comes)) - set(node.goes) == then == node.models.keys()
        assert node.used == len({p.gpu for p in after.partitions if node_of(p.gpu) == name})
    rates = [rate for node in found.nodes.values() for rate in node.models.values()]
    assert sum(rates) == sum(slot.rows_per_s for part in after.partitions for slot in part.slots)
    moves = found.moves
    assert moves.stay + moves.move + moves.appear == len(after.partitions)
    assert moves.stay + moves.move + moves.go == len(before.partitions)


@given(plan=plans())
def test_the_same_plan_changes_nothing(plan: Plan) -> None:
    found = planned_fleet(plan, plan, GPUS)
    assert found.loads == 0 and found.moves == (len(plan.partitions), 0, 0, 0)
    assert not any(node.comes or node.goes for node in found.nodes.values())
