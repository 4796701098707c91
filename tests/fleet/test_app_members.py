"""All models of an app on one node."""

from collections.abc import Sequence
from dataclasses import replace

from interlace.core.hardware import Fleet
from interlace.core.plan import Demand, Partition, Plan, Slot
from interlace.core.profile import Profiles
from interlace.fleet.fleet_gpus import node_of, own_models_of
from interlace.fleet.rehoming import AppPlanner
from interlace.testing.worlds import FREE, line_profile

DEMAND = [Demand(model, 10.0, 200.0) for model in "abc"]
FLEET = Fleet(tuple(replace(FREE, id=f"n{node}/g0") for node in range(3)))


def placed(current: Plan = Plan(), weights_bytes: int = 100) -> Plan:  # noqa: B008
    """The plan for an app of all three, of a planner that gives each a node of its own."""
    known = {m: line_profile(m, weights_bytes=weights_bytes) for m in "abc"}
    parts = (
        Partition(f"n{at}/g0:0", f"n{at}/g0", 100, (Slot(model, 4, 10.0),))
        for at, model in enumerate("abc")
    )
    apart = Plan(tuple(parts))

    def planner(demand: Sequence[Demand], fleet: Fleet, profiles: Profiles, current: Plan) -> Plan:
        return apart

    made = AppPlanner(planner, {"app": ("a", "b", "c")}, {FREE.kind: known})
    return made(DEMAND, FLEET, known, current)


def nodes_with_all(plan: Plan) -> list[str]:
    nodes = [node_of(gpu.id) for gpu in FLEET.gpus]
    own = {n: own_models_of(p for p in plan.partitions if node_of(p.gpu) == n) for n in nodes}
    return [node for node, models in own.items() if models == {"a", "b", "c"}]


def test_one_node_gets_turns_for_what_it_lacks_and_keeps_them() -> None:
    made = placed()
    assert nodes_with_all(made) == ["n0"] and not made.reasons
    stood = replace(made, partitions=tuple(replace(p, gpu="n2/g0") for p in made.partitions))
    assert nodes_with_all(placed(stood)) == ["n2"], "it stands there"


def test_where_no_node_has_room_the_plan_says_so() -> None:
    made = placed(weights_bytes=FREE.memory_bytes // 2)
    assert nodes_with_all(made) == []
    assert made.reasons == {"app": "no node has room for all of its models: a, b, c"}
