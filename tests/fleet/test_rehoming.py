"""Models whose accelerators are lost have turns elsewhere at once."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from interlace.core.hardware import Fleet
from interlace.core.plan import Demand, Partition, Plan, Slot
from interlace.fleet.fleet_gpus import own_models_of
from interlace.fleet.rehoming import rehomed
from interlace.perf.memory import holds
from interlace.testing.worlds import FREE, line_profile

MODELS = "abcdef"
PROFILES = {name: line_profile(name, 2.0, 1.0, weights_bytes=100) for name in MODELS}
DEMAND = [Demand(name, 10.0 * i, 100.0) for i, name in enumerate(MODELS)]


def fleet(count: int, memory_bytes: int = 10**9) -> Fleet:
    gpus = (replace(FREE, id=f"n{i}/gpu0", memory_bytes=memory_bytes) for i in range(count))
    return Fleet(tuple(gpus))


def part(gpu: str, name: str, own: str, guests: str = "", share_pct: int = 50) -> Partition:
    turns = [Slot(model, 4, 5.0) for model in own]
    lent = [Slot(model, 1, 0.0, guest=True) for model in guests if model not in own]
    return Partition(f"{gpu}:{name}", gpu, share_pct, (*turns, *lent))


def test_a_guest_becomes_the_owner_where_fewest_have_turns() -> None:
    plan = Plan((part("n0/gpu0", "p", "ab", "c"), part("n0/gpu0", "q", "d", "c")))
    after = rehomed(plan, {"c"}, DEMAND, fleet(1), {FREE.kind: PROFILES})
    p, q = after.partitions
    assert own_models_of([p]) == {"a", "b"} and own_models_of([q]) == {"c", "d"}
    assert [slot.model for slot in p.slots if slot.guest] == ["c"]


def test_an_idle_accelerator_is_taken_whole() -> None:
    plan = Plan((part("n0/gpu0", "p", "a"),))
    after = rehomed(plan, {"b"}, DEMAND, fleet(2), {FREE.kind: PROFILES})
    (home,) = (one for one in after.partitions if own_models_of([one]) == {"b"})
    assert (home.gpu, home.share_pct) == ("n1/gpu0", max(FREE.shares_pct))


def test_who_is_in_time_nowhere_waits_for_the_plan() -> None:
    hasty = [replace(one, slo_ms=1.0) if one.model == "b" else one for one in DEMAND]
    plan = Plan((part("n0/gpu0", "p", "a"),))
    assert rehomed(plan, {"b"}, hasty, fleet(1), {FREE.kind: PROFILES}) == plan
    unknown = {name: one for name, one in PROFILES.items() if name != "b"}
    assert rehomed(plan, {"b"}, DEMAND, fleet(1), {FREE.kind: unknown}) == plan


@given(
    own=st.lists(st.tuples(st.integers(0, 2), st.sampled_from("abc")), max_size=6, unique=True),
    guests=st.sets(st.sampled_from(MODELS)),
    homeless=st.sets(st.sampled_from("def")),
    memory_bytes=st.integers(100, 1_000),
    slos_ms=st.lists(st.sampled_from([1.0, 4.0, 8.0, 100.0]), min_size=6, max_size=6),
)
def test_turns_stay_memory_holds_and_nobody_waits_for_whom_there_is_a_place(
    own: list[tuple[int, str]],
    guests: set[str],
    homeless: set[str],
    memory_bytes: int,
    slos_ms: list[float],
) -> None:
    there = fleet(3, memory_bytes)
    parts = [part(f"n{gpu}/gpu0", model, model, "".join(guests)) for gpu, model in own]
    fits = [
        one
        for gpu in there.gpus
        for mine in [[p for p in parts if p.gpu == gpu.id]]
        if holds(gpu, [(50, [s.model for s in p.slots]) for p in mine], PROFILES)
        for one in mine
    ]
    demand = [replace(one, slo_ms=slo) for one, slo in zip(DEMAND, slos_ms, strict=True)]
    after = rehomed(Plan(tuple(fits)), homeless, demand, there, {FREE.kind: PROFILES})
    turns = [(one.id, slot) for one in after.partitions for slot in one.slots if not slot.guest]
    for one in fits:
        assert all((one.id, slot) in turns for slot in one.slots if not slot.guest)
    new = [slot.model for _, slot in turns if slot.rows_per_s != 5.0]
    assert len(new) == len(set(new)) and set(new) <= homeless
    assert len({one.id for one in after.partitions}) == len(after.partitions)
    for gpu in there.gpus:
        held = [
            (one.share_pct, [slot.model for slot in one.slots])
            for one in after.partitions
            if one.gpu == gpu.id
        ]
        assert holds(gpu, held, PROFILES)
    if len({one.gpu for one in fits}) < 3 and memory_bytes >= 700:
        quick = {one.model for one in demand if one.slo_ms >= 8.0}
        assert homeless & quick <= set(new)
