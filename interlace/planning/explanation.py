"""Why one model got what it got, in words and figures."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Final

from interlace.core.plan import Demand, Partition, Slot
from interlace.core.tables import counted, did_you_mean
from interlace.core.user_errors import InputError
from interlace.perf.latency import Surface, surface
from interlace.perf.sizing import knee_pct
from interlace.planning.capacity_plan import CapacityPlan, plan
from interlace.policy.base import System

_MOST_PLACES: Final = 12
#: Plans that took longer are not made again for the sake of an explanation.
_PATIENCE_S: Final = 10.0


def explain(found: CapacityPlan, model: str, system: System | str) -> list[str]:
    """What each share could do for the model, where it was put, what limits it, and what else.

    ``system`` is the one that planned: it plans again without the model, and with twice its SLO,
    unless its first plan took more than 10 s.

    Raises:
        InputError: the scenario has no such model.
    """
    asked = next((one for one in found.scenario.demand if one.model == model), None)
    if asked is None:
        known = [one.model for one in found.scenario.demand]
        raise InputError(
            f"the scenario has no model '{model}'{did_you_mean(model, known)}; "
            f"it has {', '.join(known)}"
        )
    said = [
        f"{model}: {asked.rows_per_s:g} requests/s within {asked.slo_ms:g} ms, "
        f"{100 * asked.attainment:g} % of them in time"
    ]
    if model in found.scenario.busy_profiles:
        latency = surface(found.scenario.busy_profiles[model])
        said += _shares(found, asked, latency)
        said += _places(found, asked, latency)
        said += _limits(found, asked)
        said += _alternatives(found, asked, system)
    return [*said, *_unserved(found, asked)]


def _usable(found: CapacityPlan, latency: Surface) -> list[int]:
    """Legal shares that differ: of those that take the same measured curve, the smallest."""
    curves: dict[int, int] = {}
    for share in found.scenario.gpu.shares_pct:
        if share >= latency.shares_pct[0]:
            measured = max(s for s in latency.shares_pct if s <= share)
            curves.setdefault(measured, share)
    return list(curves.values())


def _most_rows_per_s(latency: Surface, asked: Demand, share_pct: int) -> float:
    """Rows per second of the best batch within the SLO, back to back; 0 if there is none."""
    largest = latency.largest_batch(asked.slo_ms, share_pct, asked.max_batch)
    rates = (latency.throughput_rows_per_s(batch, share_pct) for batch in range(1, largest + 1))
    return max(rates, default=0.0)


def _shares(found: CapacityPlan, asked: Demand, latency: Surface) -> Iterator[str]:
    usable = _usable(found, latency)
    gpu = found.scenario.gpu
    whole = {s: _most_rows_per_s(latency, asked, s) / gpu.fraction(s) for s in usable}
    for share in usable:
        largest = latency.largest_batch(asked.slo_ms, share, asked.max_batch)
        if not largest:
            yield (
                f"  at {share:3d} %: not one row within the SLO "
                f"(it takes {latency.latency_ms(1, share):.1f} ms)"
            )
            continue
        yield (
            f"  at {share:3d} %: batches up to {largest} run within the SLO, at most "
            f"{whole[share] * gpu.fraction(share):.0f}/s; on a GPU full of such shares "
            f"{whole[share]:.0f}/s"
        )
    best = max(usable, key=lambda share: whole[share])
    if whole[best] > 0:
        batch = latency.best_batch(asked.slo_ms, best, asked.max_batch)
        knees = ", ".join(
            f"{knee_pct(latency, size, usable)} % for batches of {size}"
            for size in sorted({1, batch})
        )
        yield f"  most work for the hardware at {best} %; knee: {knees}"


def _places(found: CapacityPlan, asked: Demand, latency: Surface) -> Iterator[str]:
    placed = list(_slots(found, asked.model))
    for part, slot in placed[:_MOST_PLACES]:
        others = [s.model for s in part.slots if s.model != asked.model]
        beside = f", beside {', '.join(others)}" if others else ", alone"
        run_ms = latency.latency_ms(slot.batch, part.share_pct)
        yield (
            f"  in {part.id}: {slot.rows_per_s:.1f} requests/s at {part.share_pct} % in batches "
            f"of up to {slot.batch} ({run_ms:.1f} ms){beside}"
        )
    if placed[_MOST_PLACES:]:
        yield f"  and in {counted(len(placed) - _MOST_PLACES, 'more partition')}"
    if placed:
        part, slot = max(placed, key=lambda one: one[1].rows_per_s)
        yield f"  why batches of {slot.batch}: {_why_batch(asked, slot, part, latency)}"
        yield f"  why here: {_why_here(found, part)}"


def _slots(found: CapacityPlan, model: str) -> Iterator[tuple[Partition, Slot]]:
    for part in found.plan.partitions:
        for slot in part.slots:
            if slot.model == model and not slot.guest:
                yield part, slot


def _why_batch(asked: Demand, slot: Slot, part: Partition, latency: Surface) -> str:
    largest = latency.largest_batch(asked.slo_ms, part.share_pct, asked.max_batch)
    run_ms = latency.latency_ms(slot.batch, part.share_pct)
    if slot.batch >= asked.max_batch:
        return "max_batch allows no larger one"
    if slot.batch >= largest:
        more_ms = latency.latency_ms(slot.batch + 1, part.share_pct)
        return f"one row more takes {more_ms:.1f} ms, beyond the SLO"
    arrive_ms = 1000.0 * slot.batch / slot.rows_per_s if slot.rows_per_s > 0 else 0.0
    return (
        f"up to {largest} would run within the SLO, but {asked.slo_ms - run_ms:.1f} ms of it are "
        f"kept for waiting; {slot.batch} arrive in {arrive_ms:.1f} ms here"
    )


def _why_here(found: CapacityPlan, part: Partition) -> str:
    gpu = found.scenario.gpu
    shares = [p.share_pct for p in found.plan.partitions if p.gpu == part.gpu]
    busy = sum(found.busy(part, slot) for slot in part.slots)
    return (
        f"of {part.gpu} {sum(shares)} % in {counted(len(shares), 'partition')} are given out and "
        f"{found.memory_bytes[part.gpu] / 1e9:.1f} of {gpu.memory_bytes / 1e9:.0f} GB held; "
        f"{part.id} is busy {100 * busy:.0f} % of the time, the rest is for uneven arrivals"
    )


def _limits(found: CapacityPlan, asked: Demand) -> Iterator[str]:
    tried = found.trial.models.get(asked.model)
    if tried is not None:
        low, high = tried.interval()
        yield (
            f"  tried: {tried.in_time} of {tried.sent} requests in time ({100 * low:.2f} to "
            f"{100 * high:.2f} %), p99 {tried.p99_text(asked.slo_ms)}"
        )
    price = found.bound.best.price.get(asked.model)
    if price:
        yield (
            f"  price: {100 * price:.3f} GPUs for every 100 requests/s more, whoever schedules "
            f"({1 / price:.0f} requests/s fill one)"
        )


def _alternatives(found: CapacityPlan, asked: Demand, system: System | str) -> Iterator[str]:
    """What the same planner needs without the model, and if it had twice the time."""
    if found.planning_s > _PATIENCE_S:
        return
    own = {one.model: one for one in found.scenario.own}
    if asked.model not in own:
        return
    asked = own.pop(asked.model)
    others, slower = tuple(own.values()), replace(asked, slo_ms=2.0 * asked.slo_ms)
    for words, demand in (
        ("without it", others),
        (f"within {slower.slo_ms:g} ms", (*others, slower)),
    ):
        other = plan(found.scenario.with_own(demand), system=system)
        rest = "" if other.served else ", not all served"
        yield f"  {words}: {counted(other.gpus, 'GPU')} instead of {found.gpus}{rest}"


def _unserved(found: CapacityPlan, asked: Demand) -> Iterator[str]:
    left = found.plan.unserved_rows_per_s.get(asked.model)
    if left is not None:
        yield f"  not served: {left:.4g} requests/s: {found.plan.reasons.get(asked.model)}"
