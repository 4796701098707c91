"""The laws fail for systems that break them, each for the law that it breaks."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import count

import pytest
from hypothesis import Phase, settings
from msgspec import structs

from interlace.core.hardware import Fleet
from interlace.core.loading import LoadPlan
from interlace.core.plan import Demand, Partition, Plan
from interlace.core.profile import Profiles
from interlace.core.request import Request
from interlace.policy.base import System
from interlace.policy.catalog import resolve
from interlace.policy.cold_policy import Holding, LoadChoice, WaitingLoad
from interlace.policy.decision import Dispatch, Drop, Launch, Refusal
from interlace.policy.load_order import least_recently_used
from interlace.policy.view import View
from interlace.testing import Law, check_system, laws_of

GOOD = resolve("gpulet")
_calls = count()


def _same_partition_twice(view: View, now_ms: float) -> Dispatch:
    found = GOOD.dispatcher(view, now_ms)
    return structs.replace(found, launches=(*found.launches, *found.launches))


def _busy_partitions(view: View, now_ms: float) -> Dispatch:
    return Dispatch(
        tuple(
            Launch(partition.id, slot.model, 1)
            for partition in view.partitions
            for slot in partition.slots[:1]
            if view.queue(slot.model).rows
        )
    )


def _never_the_same(view: View, now_ms: float) -> Dispatch:
    return structs.replace(GOOD.dispatcher(view, now_ms), wake_ms=now_ms + 1.0 + next(_calls))


def _wakes_at_once(view: View, now_ms: float) -> Dispatch:
    return structs.replace(GOOD.dispatcher(view, now_ms), wake_ms=now_ms)


def _drops_what_is_not_there(view: View, now_ms: float) -> Dispatch:
    return structs.replace(GOOD.dispatcher(view, now_ms), drops=(Drop("a", 10_000),))


def _admits_none(request: Request, view: View, now_ms: float) -> Refusal:
    return Refusal(1.0, 1.0)


def _altered(change: Callable[[Plan, Fleet], Plan]) -> Callable[..., Plan]:
    def planner(demand: Sequence[Demand], fleet: Fleet, profiles: Profiles, current: Plan) -> Plan:
        return change(GOOD.packer(demand, fleet, profiles, current), fleet)

    return planner


def _too_much(plan: Plan, fleet: Fleet) -> Plan:
    more = tuple(Partition(f"{gpu.id}:more", gpu.id, 100) for gpu in fleet.gpus)
    return replace(plan, partitions=(*plan.partitions, *more))


def _slower_cycles(plan: Plan, fleet: Fleet) -> Plan:
    return replace(
        plan, partitions=tuple(replace(p, duty_ms=10.0 * p.duty_ms) for p in plan.partitions)
    )


def _half_served(plan: Plan, fleet: Fleet) -> Plan:
    halved = tuple(
        replace(p, slots=tuple(replace(s, rows_per_s=s.rows_per_s / 2) for s in p.slots))
        for p in plan.partitions
    )
    return replace(plan, partitions=halved)


def _evicts_twice(
    need_bytes: int, holdings: Iterable[Holding], now_ms: float
) -> Sequence[tuple[str, tuple[int, ...]]]:
    found = least_recently_used(need_bytes, holdings, now_ms)
    return [*found, *found]


def _brings_what_is_there(
    free_bytes: int, holdings: Sequence[Holding], now_ms: float
) -> tuple[str, LoadPlan] | None:
    there = [one for one in holdings if one.held]
    return (there[0].model, there[0].curve.plan()) if there else None


def _another_order(waiting: Sequence[WaitingLoad], now_ms: float) -> LoadChoice:
    return LoadChoice(waiting[0].model) if next(_calls) % 2 else LoadChoice(None, now_ms + 1.0)


def _cold(**changes: object) -> System:
    return replace(GOOD, cold=replace(GOOD.cold, **changes))  # type: ignore[arg-type]


COLD = "weights_come_before_they_are_used_and_leave_after"
DECISIONS = "decisions_are_legal_and_every_request_is_answered_once"
BROKEN = {
    "a partition twice": (DECISIONS, replace(GOOD, dispatcher=_same_partition_twice)),
    "busy partitions": (DECISIONS, replace(GOOD, dispatcher=_busy_partitions)),
    "another answer": (DECISIONS, replace(GOOD, dispatcher=_never_the_same)),
    "waking at once": (DECISIONS, replace(GOOD, dispatcher=_wakes_at_once)),
    "drops of nothing": (DECISIONS, replace(GOOD, dispatcher=_drops_what_is_not_there)),
    "refusing all": (DECISIONS, replace(GOOD, admission=_admits_none)),
    "more than 100 %": (DECISIONS, replace(resolve("fixed"), within_100=True)),
    "unfair": (
        "no_contending_model_falls_behind_the_bound",
        replace(resolve("clockwork"), fair=True),
    ),
    "evicting twice": (COLD, _cold(eviction=_evicts_twice)),
    "bringing what is there": (COLD, _cold(prefetch=_brings_what_is_there)),
    "another order": (COLD, _cold(order=_another_order)),
    "illegal plans": ("plans_are_legal", replace(GOOD, planner=_altered(_too_much))),
    "slow cycles": ("packed_cycles_keep_every_slo", replace(GOOD, packer=_altered(_slower_cycles))),
    "lost demand": (
        "demand_is_conserved_and_partitions_fit_side_by_side",
        replace(GOOD, packer=_altered(_half_served)),
    ),
}


@pytest.fixture(autouse=True)
def _unshrunk() -> Iterator[None]:
    """The first case that breaks a law is enough."""
    settings.register_profile("unshrunk", phases=[Phase.generate], derandomize=False)
    settings.load_profile("unshrunk")
    yield
    settings.load_profile("same")


@pytest.mark.parametrize("broken", sorted(BROKEN))
def test_a_broken_system_breaks_its_law(broken: str) -> None:
    name, system = BROKEN[broken]
    law = _law(system, name)
    for _ in range(5):  # cases are drawn: one search may miss what breaks it
        try:
            law(system)
        except AssertionError:
            return
    pytest.fail(f"{broken}: {name} was kept")


def _law(system: System, name: str) -> Law:
    (found,) = [one for one in laws_of(system) if one.name == name]
    return found


def test_promises_bring_their_laws() -> None:
    bare = replace(GOOD, cyclic_planner=False, cyclic_packer=False)
    more = {one.name for one in laws_of(GOOD)} - {one.name for one in laws_of(bare)}
    assert "planned_cycles_keep_every_slo" in more and "packed_cycles_keep_every_slo" in more
    assert not any("contending" in one.name for one in laws_of(GOOD))


def test_check_system_names_the_law() -> None:
    with pytest.raises(AssertionError) as caught:
        check_system(replace(GOOD, planner=_altered(_too_much)))
    notes = caught.value.__notes__
    assert any("'gpulet' breaks the law plans_are_legal" in note for note in notes)
