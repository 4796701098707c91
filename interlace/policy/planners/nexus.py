"""Squishy bin packing: the planner of Nexus, as gpulet describes and uses it (section 2.2)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from interlace.core.hardware import Fleet, Gpu
from interlace.core.plan import Demand, Plan
from interlace.core.profile import Profiles
from interlace.perf.duty import Turn
from interlace.perf.tables import Tables
from interlace.policy.bins import FULL, ROUNDING, Bin, Board, Loads
from interlace.policy.checked import checked


class _Node(NamedTuple):
    """Residual loads in one duty cycle; every load's own cycle is at least ``duty_ms``."""

    turns: tuple[Turn, ...]
    duty_ms: float
    busy_ms: float

    @property
    def occupancy(self) -> float:
        return self.busy_ms / self.duty_ms


@dataclass(frozen=True, slots=True)
class Nexus:
    """Squishy bin packing over uncut accelerators, or each cut into ``parts`` even ones.

    A model's rate is first served by saturated partitions, whose batch has the highest throughput
    with 2 L(b) <= SLO. What is left is a residual load: the largest batch with L(b) + b / rate <=
    SLO and a duty cycle of b / rate. Residual loads are merged, largest occupancy first, into the
    cycle that becomes fullest: its length is the shorter one, batches shrink to what arrives in it,
    and executions must fit (Nexus, SOSP 2019, Algorithm 1; gpulet sections 2.2 and 2.4).
    """

    parts: int = 1

    def __call__(
        self, demand: Sequence[Demand], fleet: Fleet, profiles: Profiles, current: Plan
    ) -> Plan:
        tables = Tables(profiles)
        asked = checked(demand, fleet, tables)
        wanted, unserved, reasons = asked.wanted, asked.unserved_rps, asked.reasons
        board = Board(fleet, Loads(wanted, tables))
        share_pct = self._share_pct(fleet)
        residual: list[_Node] = []
        for one in sorted(wanted, key=lambda d: (-d.rate_rps, d.model)):
            left_rps = self._saturate(one, board, share_pct)
            alone = board.loads.turn(one.model, share_pct) if left_rps else None
            load = _residual(replace(alone, rate_rps=left_rps)) if alone else None
            if load is not None:
                residual.append(load)
            elif left_rps > ROUNDING * one.rate_rps:
                unserved[one.model] = left_rps
                reasons[one.model] = FULL
        for node in _merged(residual, board, share_pct):
            if not self._place(node, board, share_pct):
                lost = {t.model: unserved.get(t.model, 0.0) + t.rate_rps for t in node.turns}
                unserved |= lost
                reasons |= dict.fromkeys(lost, FULL)
        return Plan(board.partitions(), unserved, reasons)

    def _share_pct(self, fleet: Fleet) -> int:
        """The share of every partition: the largest that may stand ``parts`` times."""
        shares = fleet.gpus[0].shares_pct if fleet.gpus else (100,)
        even = [
            share
            for share in shares
            if share * self.parts <= 100 and all(g.legal([share] * self.parts) for g in fleet.gpus)
        ]
        return even[-1] if even else 100

    def _saturate(self, one: Demand, board: Board, share_pct: int) -> float:
        """Partitions of the model alone, each at its highest rate; the rate that is left."""
        most_rps = board.loads.saturated_rps(one.model, share_pct)
        left_rps = one.rate_rps
        while most_rps > 0 and left_rps >= most_rps:
            gpu = self._free(board, share_pct, [one.model])
            if gpu is None:
                break
            board.add(Bin(gpu, share_pct), one.model, most_rps)
            left_rps -= most_rps
        return left_rps if left_rps > ROUNDING * one.rate_rps else 0.0

    def _place(self, node: _Node, board: Board, share_pct: int) -> bool:
        gpu = self._free(board, share_pct, [one.model for one in node.turns])
        if gpu is None:
            return False
        home = Bin(gpu, share_pct)
        for one in node.turns:
            board.add(home, one.model, one.rate_rps)
        return True

    def _free(self, board: Board, share_pct: int, models: Sequence[str]) -> Gpu | None:
        """The first accelerator with an empty partition and the memory for these models."""
        for gpu in board.gpus:
            here = [one.share_pct for one in board.on(gpu)]
            if len(here) < self.parts and gpu.legal([*here, share_pct]):
                home = Bin(gpu, share_pct)
                if board.remembers(home, models):
                    return gpu
        return None


def _residual(load: Turn) -> _Node | None:
    """A residual load in a cycle of its own; ``None`` if it has none within its SLO."""
    for batch in range(load.max_batch, 0, -1):
        gather_ms = 1000.0 * batch / load.rate_rps
        run_ms = load.latency_ms[batch]
        if batch == 1:
            gather_ms = min(gather_ms, load.slo_ms - run_ms)
        if gather_ms + run_ms <= load.slo_ms and run_ms <= gather_ms:
            return _Node((load,), gather_ms, run_ms)
    return None


def _merged(loads: Sequence[_Node], board: Board, share_pct: int) -> list[_Node]:
    """Nodes after every load, largest occupancy first, joined the one that becomes fullest."""
    nodes: list[_Node] = []
    for load in sorted(loads, key=lambda n: (-n.occupancy, n.turns[0].model)):
        joined = [(_joined(node, load), index) for index, node in enumerate(nodes)]
        fitting = [
            (node, index)
            for node, index in joined
            if node is not None and _remembered(node, board, share_pct)
        ]
        if fitting:
            node, index = max(fitting, key=lambda pair: (pair[0].occupancy, -pair[1]))
            nodes[index] = node
        else:
            nodes.append(load)
    return nodes


def _joined(node: _Node, load: _Node) -> _Node | None:
    """Both in the shorter of their cycles; ``None`` if the executions do not fit it."""
    duty_ms = min(node.duty_ms, load.duty_ms)
    turns = (*node.turns, *load.turns)
    busy_ms = sum(one.latency_ms[one.batch(duty_ms)] for one in turns)
    return _Node(turns, duty_ms, busy_ms) if busy_ms <= duty_ms else None


def _remembered(node: _Node, board: Board, share_pct: int) -> bool:
    """True if some accelerator, empty, has the memory for these models."""
    models = [one.model for one in node.turns]
    return any(board.remembers(Bin(gpu, share_pct), models, alone=True) for gpu in board.gpus)
