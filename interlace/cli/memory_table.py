"""More models than memory as a table: what stays, what a cold start takes, how often."""

from __future__ import annotations

from math import isfinite, isnan, nan
from typing import Final

from rich.console import Console
from rich.table import Table

from interlace.cli.screen import table
from interlace.planning.memory_plan import MemoryPlan, ModelMemory

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
    made = table(("model",), figures, "memory: weights that stay, a cold start's first row")
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
