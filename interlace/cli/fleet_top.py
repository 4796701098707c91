"""A live table of a fleet: each node, and each model on it."""

from __future__ import annotations

import time
from collections.abc import Callable

import msgspec
from rich.console import Group
from rich.text import Text

from interlace.cli.fleet_table import node_state
from interlace.cli.screen import table
from interlace.core.node import NodeState
from interlace.core.tables import counted
from interlace.fleet.status import FleetStatus


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
    made = table(["node", "state", "model"], numbers, prose=["state"])
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
