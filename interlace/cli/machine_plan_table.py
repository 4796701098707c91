"""A plan of this machine as a table: who runs where, what that yields, and what does not fit."""

from __future__ import annotations

from math import inf

from rich.console import Console

from interlace.assembly.machine_plan import MachinePlan
from interlace.cli.plan_tables import show_memory
from interlace.cli.screen import table


def show_machine_plan(out: Console, found: MachinePlan) -> None:
    """Print the table, the room that is left, and what is not served and why."""
    cycles = any(line.duty_ms for line in found.slots)
    duty = ("duty ms",) if cycles else ()
    figures = ("share %", "batch", "SLO ms", "batch ms", *duty, "capacity/s", "alone/s")
    made = table(("partition", "model"), figures)
    before = ""
    for line in found.slots:
        first = line.partition != before
        before = line.partition
        made.add_row(
            line.partition if first else "",
            line.model,
            str(line.share_pct) if first else "",
            str(line.batch),
            f"{line.slo_ms:g}",
            f"{line.batch_ms:.1f}",
            *([f"{line.duty_ms:.1f}" if first and line.duty_ms else ""] if cycles else []),
            f"{line.capacity_rows_per_s:.1f}",
            f"{line.alone_rows_per_s:.1f}",
        )
    out.print(made)
    for sentence in sentences(found):
        out.print(sentence, soft_wrap=True)
    if found.memory is not None:
        show_memory(out, found.memory)


def sentences(found: MachinePlan) -> list[str]:
    """What the table does not say."""
    said, plan = [], found.plan
    if plan.headroom is not None and 1 <= plan.headroom < inf:
        said.append(f"every rate could be {plan.headroom:.2f} times as high")
    elif plan.headroom is not None and plan.unserved_rows_per_s and plan.headroom < inf:
        said.append(f"the demand is too high: {plan.headroom:.2%} of every rate fits")
    elif plan.headroom is not None and plan.headroom < 1:
        said.append(f"all rates are planned; queues are known to bear {plan.headroom:.2%} of each")
    for key, rows_per_s in plan.unserved_rows_per_s.items():
        reason = plan.reasons.get(key, "no reason given")
        rate = f"{rows_per_s:.3g} requests/s of " if rows_per_s else ""
        said.append(f"not served: {rate}{found.names[key]}: {reason}")
    return [*said, *(f"left out: {why}" for why in found.left_out)]
