"""The table of a fleet: a line for each node."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec
from rich.console import Console

from interlace.cli.screen import table
from interlace.fleet.planned_fleet import PlannedFleet
from interlace.fleet.prices import FleetCost
from interlace.fleet.status import FleetStatus, NodeStatus


def show_fleet(out: Console, text: str) -> None:
    """Print what a controller says of its fleet, given as JSON."""
    status = msgspec.json.decode(text, type=FleetStatus)
    made = table(
        ["node", "zone", "accelerators", "models", "state"],
        ["term", "revision"],
        prose=["accelerators", "models", "state"],
    )
    for name, node in sorted(status.nodes.items()):
        made.add_row(*_line(name, node, status.files))
    out.print(made)
    _show_unserved(out, status.unserved_rows_per_s, status.reasons)
    _show_cost(out, status.cost)
    if status.failure:
        out.print(f"no newer plan: {status.failure}")
    if status.planning:
        out.print("another plan is being made")
    if not status.term:
        out.print("another controller commands")


def show_planned(out: Console, found: object) -> None:
    """Print what would change, as the controller says it in plain values."""
    planned = msgspec.convert(found, PlannedFleet)
    if planned.failure:
        out.print(f"no plan: {planned.failure}")
        return
    made = table(
        ("node", "accelerators", "models", "comes", "goes"),
        ("used", "room for requests/s"),
        prose=["accelerators", "models", "comes", "goes"],
    )
    for name, node in sorted(planned.nodes.items()):
        made.add_row(
            name,
            _kinds(node.accelerators),
            ", ".join(node.models) or "-",
            ", ".join(node.comes) or "-",
            ", ".join(node.goes) or "-",
            str(node.used),
            f"{sum(node.models.values()):.1f}",
        )
    out.print(made)
    out.print(f"{planned.moves.sentence()}; {planned.loads} loads of models")
    _show_unserved(out, planned.unserved_rows_per_s, planned.reasons)
    if planned.headroom is not None:
        out.print(f"all rates may be {planned.headroom:.2f} times what they are")
    _show_cost(out, planned.cost)


def _show_cost(out: Console, cost: FleetCost | None) -> None:
    if cost is not None:
        out.print(
            f"accelerators cost {cost.all_per_hour:.2f} an hour, those in use "
            f"{cost.used_per_hour:.2f}"
        )


def _show_unserved(out: Console, rows_per_s: Mapping[str, float], why: Mapping[str, str]) -> None:
    for model in sorted(rows_per_s.keys() | why.keys()):
        reason = why.get(model, "the accelerators are full")
        out.print(f"not served of {model}: {rows_per_s.get(model, 0.0):.1f} rows/s: {reason}")


def _kinds(accelerators: Mapping[str, int]) -> str:
    return ", ".join(f"{count} {kind}" for kind, count in sorted(accelerators.items()))


def _line(name: str, node: NodeStatus, files: str) -> tuple[str, ...]:
    state, assigned = node.state, node.assigned
    told = () if assigned is None else sorted(assigned.models)
    term, number = (0, 0) if state is None else state.revision
    return (
        name,
        node.zone,
        _kinds(node.accelerators),
        ", ".join(told) or "-",
        node_state(node, files),
        str(term),
        str(number),
    )


def node_state(node: NodeStatus, files: str) -> str:
    """What a node does, or what is wrong with it; ``files`` are those that are wanted."""
    state = node.state
    if node.problem:
        return node.problem
    if state is None or not node.accelerators:
        return "not heard of: see that it runs, and that this controller reaches its address"
    if state.failures:
        return "; ".join(f"{model}: {why}" for model, why in sorted(state.failures.items()))
    if node.drained:
        return "stands until its models stand elsewhere" if state.accepting else "drained"
    if not state.accepting:
        return "is ending"
    if state.files != files:
        return "brings the models"
    if node.assigned is None:
        return "waits for a plan"
    does = "serves" if state.settled and state.models else "changes"
    return f"{does}; {node.remark}" if node.remark else does
