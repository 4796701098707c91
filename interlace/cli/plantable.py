"""A plan as a table for people: who runs where, what that yields, and what does not fit."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from rich.console import Console

from interlace.cli.screen import table
from interlace.core.plan import Demand, Partition, Plan, Slot
from interlace.core.profile import Profile
from interlace.perf.latency import surface


@dataclass(frozen=True, slots=True)
class PlannedSlot:
    """One model's turn in one partition, with what is predicted of it.

    ``capacity_rows_per_s`` is the rate that fits beside the others, ``alone_rows_per_s`` what full
    batches would
    yield if nobody else had a turn there; ``batch_ms`` is the latency (p95) of one such batch.
    ``duty_ms`` is 0 where turns follow from deadlines.
    """

    partition: str
    share_pct: int
    duty_ms: float
    model: str
    batch: int
    slo_ms: float
    batch_ms: float
    capacity_rows_per_s: float
    alone_rows_per_s: float


def lines(
    plan: Plan,
    demand: Sequence[Demand],
    profiles: Mapping[str, Profile],
    names: Mapping[str, str],
) -> list[PlannedSlot]:
    """Every slot of a plan; ``names`` maps deployment keys to what people call them."""
    slo_ms = {one.model: one.slo_ms for one in demand}
    return [
        _line(partition, slot, slo_ms[slot.model], profiles[slot.model], names[slot.model])
        for partition in plan.partitions
        for slot in partition.slots
    ]


def _line(
    partition: Partition, slot: Slot, slo_ms: float, profile: Profile, name: str
) -> PlannedSlot:
    batch_ms = surface(profile).latency_ms(slot.batch, partition.share_pct)
    return PlannedSlot(
        partition=partition.id,
        share_pct=partition.share_pct,
        duty_ms=partition.duty_ms,
        model=name,
        batch=slot.batch,
        slo_ms=slo_ms,
        batch_ms=batch_ms,
        capacity_rows_per_s=slot.rows_per_s,
        alone_rows_per_s=1000.0 * slot.batch / batch_ms,
    )


def show(out: Console, plan: Plan, found: Sequence[PlannedSlot], names: Mapping[str, str]) -> None:
    """Print the table, the room that is left, and what is not served and why."""
    figures = ("share %", "batch", "SLO ms", "batch ms", "duty ms", "capacity/s", "alone/s")
    made = table(("partition", "model"), figures)
    before = ""
    for line in found:
        first = line.partition != before
        before = line.partition
        made.add_row(
            line.partition if first else "",
            line.model,
            str(line.share_pct) if first else "",
            str(line.batch),
            f"{line.slo_ms:g}",
            f"{line.batch_ms:.1f}",
            f"{line.duty_ms:.1f}" if first and line.duty_ms else "",
            f"{line.capacity_rows_per_s:.1f}",
            f"{line.alone_rows_per_s:.1f}",
        )
    out.print(made)
    for sentence in sentences(plan, names):
        out.print(sentence, soft_wrap=True)


def sentences(plan: Plan, names: Mapping[str, str]) -> list[str]:
    """What the table does not say."""
    said = []
    if plan.headroom is not None and plan.headroom >= 1:
        said.append(f"every rate could be {plan.headroom:.2f} times as high")
    elif plan.headroom is not None:
        said.append(f"the demand is too high: {plan.headroom:.2%} of every rate fits")
    for key, rows_per_s in plan.unserved_rows_per_s.items():
        reason = plan.reasons.get(key, "no reason given")
        said.append(f"not served: {rows_per_s:.3g} requests/s of {names[key]}: {reason}")
    return said
