"""Plans in tables: one plan, variants of its scenario, systems side by side, and memory."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import isfinite, isnan, nan
from typing import Final

from rich.console import Console
from rich.table import Table

from interlace.cli.screen import FoldingTable
from interlace.core.plan import Partition
from interlace.core.tables import counted
from interlace.planning.capacity_plan import CapacityPlan
from interlace.planning.kinds import KindsPlan
from interlace.planning.memory_plan import MemoryPlan, ModelMemory
from interlace.planning.trial import ModelTrial
from interlace.policy.catalog import resolve

_MOST_SAID: Final = 8


def show(out: Console, found: CapacityPlan) -> None:
    """Print who runs where, what each model may expect, what is unserved, and the bound."""
    if found.plan.partitions:
        out.print(_partitions(found))
        out.print(_models(found))
    if found.scenario.stages:
        out.print(_stages(found))
    for sentence in found.sentences():
        out.print(sentence, soft_wrap=True)


def show_kinds(out: Console, found: KindsPlan) -> None:
    """Print each kind's plan, then what all cost."""
    for part in found.parts:
        show(out, part)
    for sentence in found.sentences():
        out.print(sentence, soft_wrap=True)


def _partitions(found: CapacityPlan) -> Table:
    figures = ("share %", "batch", "requests/s", "batch ms", "time %", "cycle ms", "GPU MB")
    made = FoldingTable(("GPU", "partition", "model"), figures)
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
    rows = [
        (
            slot.model,
            str(slot.batch),
            f"{slot.rows_per_s:.1f}",
            f"{found.batch_ms(part, slot):.1f}",
            f"{100 * found.busy(part, slot):.0f}",
        )
        for slot in part.slots
        if not slot.guest
    ]
    guests = len(part.slots) - len(rows)
    return [*rows, *([(f"and {counted(guests, 'guest')}", "", "", "", "")] if guests else [])]


def _models(found: CapacityPlan) -> Table:
    figures = ("requests/s", "SLO ms", "p99", "in SLO %", "GPUs for 100 more/s")
    made = FoldingTable(("model",), figures)
    prices = found.bound.best.price
    for one in found.scenario.demand:
        tried = found.trial.models.get(one.model)
        made.add_row(
            one.model,
            f"{one.rows_per_s:.1f}",
            f"{round(one.slo_ms, 1):g}",
            "-" if tried is None else tried.p99_text(one.slo_ms),
            "-" if tried is None else _in_slo(tried),
            f"{100 * prices[one.model]:.3f}" if one.model in prices else "-",
        )
    return made


def _stages(found: CapacityPlan) -> Table:
    """Each stage of each app: its part of the SLO, its cost, and its cost with all of the SLO.

    Beside the first one, what became of whole requests.
    """
    figures = ("rows/s", "budget ms", "of ms", "cost GPUs", "bound GPUs", "p99", "in SLO %")
    made = FoldingTable(("app", "stage", "model"), figures)
    for app, stages in found.scenario.stages.items():
        tried, slo_ms = found.trial.models.get(app), found.scenario.apps[app].slo_ms
        whole = ("-", "-") if tried is None else (tried.p99_text(slo_ms), _in_slo(tried))
        for place, one in enumerate(stages):
            made.add_row(
                "" if place else app,
                one.stage,
                one.model,
                f"{one.rows_per_s:.1f}",
                f"{one.budget_ms:.1f}",
                "" if place else f"{slo_ms:g}",
                f"{one.cost:.3f}" if isfinite(one.cost) else "-",
                f"{one.bound:.3f}" if isfinite(one.bound) else "-",
                *(("", "") if place else whole),
            )
    return made


def _in_slo(tried: ModelTrial) -> str:
    low, high = tried.interval()
    return f"{100 * tried.attainment:.1f} ({100 * low:.1f} to {100 * high:.1f})"


def show_what_ifs(out: Console, found: Mapping[str, CapacityPlan]) -> None:
    """One line for each variant, and what is not served in them and why."""
    made = FoldingTable(
        ("what if", "GPU"),
        ("GPUs", "bound", "gap", "an hour", "unserved/s", "plan s"),
        prose=["what if"],
    )
    for name, one in found.items():
        made.add_row(name, one.scenario.gpu.kind, *_figures(one))
    out.print(made)
    said = [f"{name}: {line}" for name, one in found.items() for line in _unserved(one)]
    for line in said[:_MOST_SAID]:
        out.print(line, soft_wrap=True)
    if said[_MOST_SAID:]:
        out.print(f"and {len(said) - _MOST_SAID} more; --json has all")


def show_systems(out: Console, found: Sequence[CapacityPlan]) -> None:
    """One line for each system of the catalog."""
    figures = ("GPUs", "bound", "gap", "an hour", "unserved/s", "plan s", "in SLO %")
    made = FoldingTable(("system", "source"), figures, prose=["source"])
    for one in found:
        made.add_row(
            one.system,
            resolve(one.system).source,
            *_figures(one),
            f"{100 * one.worst_attainment:.1f}",
        )
    out.print(made)
    out.print("in SLO %: of the model that fared worst when the plan was tried")
    for one in found:
        for line in _limits(one):
            out.print(f"{one.system}: {line}", soft_wrap=True)


def _limits(one: CapacityPlan) -> list[str]:
    """Where a system stopped and why; remarks on single models are in the system's own plan."""
    notes = one.plan.notes if len(one.plan.notes) == 1 else ()
    return list(dict.fromkeys([*one.plan.reasons.values(), *notes]))[:_MOST_SAID]


def _unserved(one: CapacityPlan) -> list[str]:
    lost = one.plan.unserved_rows_per_s.items()
    return [
        *one.scenario.notes,
        *(f"{rps:.4g}/s of {name} not served: {one.plan.reasons.get(name)}" for name, rps in lost),
    ]


def _figures(one: CapacityPlan) -> tuple[str, ...]:
    """GPUs, bound, gap, cost, unserved rate and planning time, as text."""
    lost = sum(one.plan.unserved_rows_per_s.values())
    return (
        str(one.gpus),
        str(one.bound.gpus),
        f"{one.gap:.2f}x" if one.served else "-",
        "-" if one.cost_per_hour is None else f"{one.cost_per_hour:.2f}",
        f"{lost:.4g}" if lost else "",
        f"{one.planning_s:.2f}",
    )


#: Models that are shown one by one: those that are asked most.
_MOST_MODELS: Final = 24


def show_memory(out: Console, found: MemoryPlan) -> None:
    """Print the table, what was seen when it was tried, and the bound."""
    out.print(_table(found))
    for sentence in found.sentences():
        out.print(sentence, soft_wrap=True)


def _table(found: MemoryPlan) -> Table:
    figures = (
        *("requests/s", "SLO ms", "MB", "kept MB", "warm ms", "cold ms", "nothing kept"),
        *("cold %", "p99 ms"),
    )
    made = FoldingTable(("model",), figures, "memory: weights that stay, a cold start's first row")
    shown = sorted(found.models, key=lambda one: -one.rate_rps)[:_MOST_MODELS]
    for one in shown:
        made.add_row(*_row(one))
    if left := len(found.models) - len(shown):
        made.add_row(f"and {left} more", *[""] * len(figures))
    return made


def _row(one: ModelMemory) -> tuple[str, ...]:
    tried = one.trial
    p99_ms = nan if tried is None else tried.p99_ms
    return (
        one.model,
        f"{one.rate_rps:.3g}",
        f"{one.slo_ms:g}",
        f"{one.weights_bytes / 1e6:.1f}",
        f"{one.kept.kept_bytes / 1e6:.1f}",
        f"{one.warm_ms:.1f}",
        f"{one.kept.end_ms:.1f}",
        f"{one.whole_ms:.1f}",
        "-" if tried is None else f"{100 * tried.cold_rate:.1f}",
        "-" if isnan(p99_ms) else f"{p99_ms:.1f}" if isfinite(p99_ms) else "none",
    )
