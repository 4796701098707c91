"""An answer in tables: partitions, models, and how far the plan is from the best there can be."""

from __future__ import annotations

from collections.abc import Sequence
from math import inf
from typing import Final

from rich.console import Console

from interlace.cli.screen import table
from interlace.core.plan import Partition
from interlace.perf.latency import surface
from interlace.planning.capacity_plan import CapacityPlan

#: Beyond this many SLOs a p99 is not told in figures.
_FAR: Final = 10
_MOST_NAMES: Final = 8


def show(out: Console, found: CapacityPlan) -> None:
    """Print who runs where, what each model may expect, what is unserved, and the bound."""
    if found.plan.partitions:
        out.print(_partitions(found))
        out.print(_models(found))
    for sentence in sentences(found):
        out.print(sentence, soft_wrap=True)


def sentences(found: CapacityPlan) -> list[str]:
    """What the tables do not say: what is not served, the cost, the bound and the gap."""
    said = [
        f"not served: {rps:.4g} requests/s of {model}: {found.plan.reasons.get(model, 'no reason')}"
        for model, rps in found.plan.unserved_rows_per_s.items()
    ]
    kind, bound = found.scenario.gpu.kind, found.bound
    cost = "" if found.cost_per_hour is None else f", {found.cost_per_hour:.2f} an hour"
    said.append(f"{found.gpus} {kind} ({found.system}, planned in {found.planning_s:.2f} s){cost}")
    said.append(f"no scheduler needs fewer than {bound.gpus}: {_bounds(found)}; gap {_gap(found)}")
    if bound.excluded:
        said.append(f"the bound leaves out what no share serves in time: {_some(bound.excluded)}")
    said += found.plan.notes
    said += found.scenario.notes
    return said


def _some(names: Sequence[str]) -> str:
    more = f" and {len(names) - _MOST_NAMES} more" if len(names) > _MOST_NAMES else ""
    return f"{', '.join(names[:_MOST_NAMES])}{more}"


def _bounds(found: CapacityPlan) -> str:
    bound = found.bound
    return (
        f"by area {bound.area.accelerators:.2f}, by layouts "
        f"{bound.configuration.accelerators:.2f}, by memory {bound.memory.accelerators:.2f}"
    )


def _gap(found: CapacityPlan) -> str:
    if not found.served:
        return "not comparable, since part of the demand is not served"
    extra = found.gpus - found.bound.gpus
    return "none: this is the fewest there can be" if extra <= 0 else f"{extra} ({found.gap:.2f}x)"


def _partitions(found: CapacityPlan) -> object:
    figures = ("share %", "batch", "requests/s", "batch ms", "time %", "cycle ms", "GPU MB")
    made = table(("GPU", "partition", "model"), figures)
    before = ""
    memory_bytes = found.memory_bytes
    for part in found.plan.partitions:
        first_on_gpu = part.gpu != before
        before = part.gpu
        for index, row in enumerate(_rows(found, part)):
            first = index == 0
            memory = f"{memory_bytes[part.gpu] / 1e6:.0f}" if first and first_on_gpu else ""
            made.add_row(
                part.gpu if first and first_on_gpu else "",
                part.id if first else "",
                row[0],
                str(part.share_pct) if first else "",
                *row[1:],
                f"{part.duty_ms:.1f}" if first and part.duty_ms else "",
                memory,
            )
    return made


def _rows(found: CapacityPlan, part: Partition) -> list[tuple[str, ...]]:
    rows: list[tuple[str, ...]] = []
    for slot in part.slots:
        run_ms = surface(found.scenario.profiles[slot.model]).latency_ms(slot.batch, part.share_pct)
        busy = 100 * found.busy(part, slot)
        rows.append(
            (slot.model, str(slot.batch), f"{slot.rows_per_s:.1f}", f"{run_ms:.1f}", f"{busy:.0f}")
        )
    return rows


def _models(found: CapacityPlan) -> object:
    figures = ("requests/s", "SLO ms", "p99", "in SLO %", "GPUs for 100 more/s")
    made = table(("model",), figures)
    prices = found.bound.best.price
    for one in found.scenario.demand:
        expected = found.expected.get(one.model)
        p99_ms = inf if expected is None else expected.p99_ms
        made.add_row(
            one.model,
            f"{one.rows_per_s:.1f}",
            f"{one.slo_ms:g}",
            p99_text(p99_ms, one.slo_ms),
            "-" if expected is None else f"{100 * expected.attainment:.1f}",
            f"{100 * prices[one.model]:.3f}" if one.model in prices else "-",
        )
    return made


def p99_text(p99_ms: float, slo_ms: float) -> str:
    """A p99 for people; of queues without end, that it is far beyond the SLO says enough."""
    if p99_ms == inf:
        return "-"
    return f"{p99_ms:.1f} ms" if p99_ms <= _FAR * slo_ms else f"> {_FAR} x SLO"
