"""A fleet as a table of its nodes, and as a live one of each model on them."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping

import msgspec
from rich.console import Console, Group
from rich.text import Text

from interlace.cli.screen import FoldingTable
from interlace.core.node import NodeState
from interlace.core.tables import counted
from interlace.fleet.kinds import FleetCost
from interlace.fleet.status import FleetStatus, NodeStatus, PlannedFleet


def show_fleet(out: Console, text: str) -> None:
    """Print what a controller says of its fleet, given as JSON."""
    status = msgspec.json.decode(text, type=FleetStatus)
    made = FoldingTable(
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
    made = FoldingTable(
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


class FleetWatch:
    """What a controller says over and over; ``read`` asks it."""

    def __init__(self, read: Callable[[], str]) -> None:
        self._read = read
        self._before, self._then_s = self._status(), time.monotonic()

    def look(self) -> Group:
        """A frame of what happened since the last look."""
        now, now_s = self._status(), time.monotonic()
        frame = _frame(self._before, now, max(now_s - self._then_s, 1e-3))
        self._before, self._then_s = now, now_s
        return frame

    def _status(self) -> FleetStatus:
        return msgspec.json.decode(self._read(), type=FleetStatus)


def _frame(before: FleetStatus, now: FleetStatus, span_s: float) -> Group:
    numbers = ["requests/s", "queued rows", "answer ms", "SLO ms"]
    made = FoldingTable(["node", "state", "model"], numbers, prose=["state"])
    for name, node in sorted(now.nodes.items()):
        state, was = node.state, before.nodes[name].state if name in before.nodes else None
        first = (name, node_state(node, now.files))
        lines = [] if state is None else _lines(state, was, span_s)
        for line in lines or [("-", "", "", "", "")]:
            made.add_row(*first, *line)
            first = ("", "")
    who = f"term {now.term}" if now.term else "another controller commands"
    unserved = "".join(f", {m}: {rate:.1f} rows/s unserved" for m, rate in
                       sorted(now.unserved_rows_per_s.items()))  # fmt: skip
    return Group(made, Text(f"{counted(len(now.nodes), 'node')}, {who}{unserved}"))


def _lines(state: NodeState, was: NodeState | None, span_s: float) -> list[tuple[str, ...]]:
    """Of each model on a node. Counts begin anew with the node."""
    known = was.models if was is not None and was.began == state.began else {}
    return [
        (
            model,
            f"{(one.arrived - known[model].arrived) / span_s:.1f}" if model in known else "",
            str(one.waiting_rows),
            f"{one.wait_ms:.1f}",
            f"{one.slo_ms:g}",
        )
        for model, one in sorted(state.models.items())
    ]
