"""The table of a fleet: a line for each node."""

from __future__ import annotations

import msgspec
from rich.console import Console

from interlace.cli.screen import table
from interlace.fleet.service import FleetStatus, NodeStatus


def show_fleet(out: Console, text: str) -> None:
    """Print what a controller says of its fleet, given as JSON."""
    status = msgspec.json.decode(text, type=FleetStatus)
    made = table(["node", "zone", "accelerators", "models", "state"], ["term", "revision"])
    for name, node in sorted(status.nodes.items()):
        made.add_row(*_line(name, node, status.files))
    out.print(made)
    for model, rate in sorted(status.unserved_rows_per_s.items()):
        why = status.reasons.get(model, "the accelerators are full")
        out.print(f"not served of {model}: {rate:.1f} rows/s: {why}")
    if status.failure:
        out.print(f"no newer plan: {status.failure}")
    if not status.term:
        out.print("another controller commands")


def _line(name: str, node: NodeStatus, files: str) -> tuple[str, ...]:
    state, assigned = node.state, node.assigned
    told = () if assigned is None else sorted(assigned.models)
    term, number = (0, 0) if state is None else state.revision
    return (
        name,
        node.zone,
        ", ".join(f"{count} {kind}" for kind, count in sorted(node.accelerators.items())),
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
        return "not heard of"
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
    return "serves" if state.settled and state.models else "changes"
