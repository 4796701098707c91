"""A new plan keeps what it can: partitions, workers of one model, whole accelerators."""

from collections import Counter
from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from interlace.core.gpu_kinds import GPU_KINDS, uniform_fleet
from interlace.core.hardware import Fleet
from interlace.core.messages import CreatePartition
from interlace.core.plan import Partition, Plan, Slot
from interlace.engine.live_partition import LivePartition, ModelState, PartitionState
from interlace.engine.plan_diff import Evictions, keep_partition_ids, match_gpus, next_steps

GPUS = uniform_fleet(GPU_KINDS["v100"], 4)


def _live(gpu: str, name: str, share_pct: int, models: str) -> LivePartition:
    live = LivePartition(
        name,
        gpu,
        share_pct,
        PartitionState.READY,
        model_states=dict.fromkeys(models, ModelState.LOADED),
    )
    live.slots = tuple(Slot(model, 1, 0.0) for model in models)
    return live


def _lives(*lives: LivePartition) -> dict[str, LivePartition]:
    return {live.id: live for live in lives}


def _plan(*parts: tuple[str, int, str]) -> Plan:
    slots = [tuple(Slot(model, 1, 1.0) for model in models) for _, _, models in parts]
    return Plan(
        tuple(
            Partition(f"n{index}", gpu, share, slots[index])
            for index, (gpu, share, _) in enumerate(parts)
        )
    )


def test_of_equal_overlapping_workers_each_keeps_the_one_with_its_model() -> None:
    lives = _lives(*[_live("gpu0", f"w{model}", 100, model) for model in "abc"])
    plan = replace(_plan(*[("gpu0", 100, model) for model in "cabd"]), overlapping=True)
    named = {p.slots[0].model: p.id for p in keep_partition_ids(plan, lives, 7).partitions}
    assert named == {"a": "wa", "b": "wb", "c": "wc", "d": "gpu0.p7"}


def test_like_accelerators_change_places_to_keep_what_stands() -> None:
    lives = _lives(_live("gpu0", "p", 50, "a"), _live("gpu1", "q", 50, "b"))
    swapped = match_gpus(_plan(("gpu0", 50, "b"), ("gpu1", 50, "a")), lives, GPUS)
    assert {p.gpu: p.slots[0].model for p in swapped.partitions} == {"gpu0": "a", "gpu1": "b"}


def test_accelerators_of_other_kinds_keep_their_places() -> None:
    (first, *_), (other, *_) = GPUS.gpus, uniform_fleet(GPU_KINDS["t4"], 1).gpus
    other = replace(other, id="t4")
    lives = _lives(_live("t4", "p", 50, "a"))
    plan = _plan(("gpu0", 50, "a"))
    assert match_gpus(plan, lives, replace(GPUS, gpus=(first, other))) == plan


def test_who_is_carved_is_told_who_leaves_beside_it() -> None:
    model_states, leaves = _live("gpu0", "p", 20, "a"), _live("gpu0", "q", 50, "b")
    elsewhere = _live("gpu1", "r", 50, "c")
    plan = _plan(("gpu0", 20, "a"), ("gpu0", 20, "b"))
    lives = _lives(model_states, leaves, elsewhere)
    carves = [
        work
        for work in next_steps(
            lives, keep_partition_ids(plan, lives, 3), Evictions(), lambda live, model: True
        )
        if isinstance(work, CreatePartition)
    ]
    assert carves == [CreatePartition("gpu0", "gpu0.p3", 20, ("q",))]


_PARTS = st.lists(
    st.tuples(
        st.sampled_from(["gpu0", "gpu1", "gpu2", "gpu3"]),
        st.sampled_from([20, 50, 100]),
        st.sampled_from(["", "a", "b", "ab", "abc"]),
    ),
    max_size=8,
)


@given(plan=_PARTS, there=_PARTS)
def test_a_relabelled_plan_is_the_same_plan_on_the_same_kinds(
    plan: list[tuple[str, int, str]], there: list[tuple[str, int, str]]
) -> None:
    lives = _lives(*[_live(gpu, f"p{i}", share, m) for i, (gpu, share, m) in enumerate(there)])
    asked = _plan(*plan)
    found = keep_partition_ids(match_gpus(asked, lives, GPUS), lives, 100)
    ids = [p.id for p in found.partitions]
    assert len(set(ids)) == len(ids)
    for partition in found.partitions:
        if partition.id in lives:
            live = lives[partition.id]
            assert (live.gpu, live.share_pct) == (partition.gpu, partition.share_pct)

    def shape(plan: Plan) -> list[list[tuple[int, tuple[Slot, ...]]]]:
        gpus = {p.gpu for p in plan.partitions}
        cut = [[(p.share_pct, p.slots) for p in plan.partitions if p.gpu == g] for g in gpus]
        return sorted((sorted(one, key=str) for one in cut), key=str)

    assert shape(found) == shape(asked)


def _likeness(wanted: list[Partition], there: list[LivePartition]) -> int:
    shares = Counter(p.share_pct for p in wanted) & Counter(p.share_pct for p in there)
    asked = Counter((p.share_pct, s.model) for p in wanted for s in p.slots)
    held = Counter((p.share_pct, s.model) for p in there for s in p.slots)
    return shares.total() + 2 * (asked & held).total()


@given(plan=_PARTS, there=_PARTS, other=st.sets(st.sampled_from(["gpu0", "gpu1", "gpu2", "gpu3"])))
def test_the_likest_pair_of_accelerators_is_matched_first(
    plan: list[tuple[str, int, str]], there: list[tuple[str, int, str]], other: set[str]
) -> None:
    """As by looking at every pair, which takes too long where there are many."""
    lives = _lives(*[_live(gpu, f"p{i}", share, m) for i, (gpu, share, m) in enumerate(there)])
    kinds = {g.id: "t4" if g.id in other else "v100" for g in GPUS.gpus}
    fleet = Fleet(tuple(replace(gpu, kind=kinds[gpu.id]) for gpu in GPUS.gpus))
    asked = _plan(*plan)
    wanted = {gpu: [p for p in asked.partitions if p.gpu == gpu] for gpu, _, _ in plan}
    stands = {gpu: [p for p in lives.values() if p.gpu == gpu] for gpu in kinds}
    moves: dict[str, str] = {}
    for _, _, old, new in sorted(
        (-_likeness(wanted[old], stands[new]), old != new, old, new)
        for old in wanted
        for new in kinds
        if kinds[old] == kinds[new]
    ):
        if old not in moves and new not in moves.values():
            moves[old] = new
    found = match_gpus(asked, lives, fleet)
    assert [p.gpu for p in found.partitions] == [moves[p.gpu] for p in asked.partitions]
