"""Every system of the catalog on one scenario, side by side."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from rich.console import Console

from interlace.cli.planning.sweep import figures
from interlace.cli.screen import table
from interlace.planning.capacity_plan import CapacityPlan, answer
from interlace.planning.scenario import Scenario
from interlace.policy.catalog import names, resolve


def compared(scenario: Scenario, say: Callable[[str], None]) -> list[CapacityPlan]:
    """One answer a row: those that serve everything first, then fewest GPUs, then attainment."""
    found = list(_answers(scenario, say))
    return sorted(found, key=lambda one: (not one.served, one.gpus, -_worst(one), one.system))


def show_compared(out: Console, found: Sequence[CapacityPlan]) -> None:
    """One line a row."""
    made = table(
        ("system", "source"),
        ("GPUs", "bound", "gap", "an hour", "unserved/s", "plan s", "in SLO %"),
    )
    for one in found:
        made.add_row(
            one.system, resolve(one.system).source, *figures(one), f"{100 * _worst(one):.1f}"
        )
    out.print(made)
    out.print("in SLO %: expected of the model that fares worst, if nothing is refused")


def _answers(scenario: Scenario, say: Callable[[str], None]) -> Iterator[CapacityPlan]:
    bound = None
    systems = [resolve(name) for name in names()]
    for number, system in enumerate(systems, 1):
        say(f"{number} of {len(systems)}: {system.name}")
        found = answer(scenario, system, bound)
        bound = found.bound
        yield found


def _worst(one: CapacityPlan) -> float:
    """Attainment of the model that fares worst; 0 if one is not in the plan at all."""
    asked = [d.model for d in one.scenario.demand if d.rows_per_s > 0]
    return min((one.expected[m].attainment if m in one.expected else 0.0 for m in asked), default=1)
