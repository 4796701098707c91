"""What a node tells those who send it requests and plans, and what it takes from them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, Protocol

from msgspec import Struct

from interlace.core.plan import Partition

#: Of ``NodeState``. Fields may be added; one that changes its meaning changes this.
SCHEMA: Final = 1


class NodeModel(Struct, frozen=True):
    """One version of a model that is served here, as ``engine.outlook.ModelOutlook`` has it."""

    name: str
    version: str
    wait_ms: float
    run_ms: float
    row_ms: float
    slo_ms: float
    waiting_rows: int
    rows_per_s: float
    planned_rows_per_s: float
    cold_ms: float = 0.0


class PlanState(Struct, frozen=True):
    """Which plan is in force: ``generation`` 0 before any was given from outside.

    ``settled``: every model is loaded in each of its partitions. ``failures`` are models of the
    plan that could not be brought up, and why.
    """

    remote: bool
    generation: int
    settled: bool
    headroom: float | None
    failures: Mapping[str, str]


class NodeState(Struct, frozen=True):
    """A node at one instant.

    ``node`` is another one after each start. ``now_ms`` is the node's own clock, which goes evenly:
    of two states of one node the larger is the newer. A node that is not ``accepting`` is to be
    sent nothing new.
    """

    schema: int
    node: str
    version: str
    now_ms: float
    accepting: bool
    in_flight: int
    gpu_kind: str
    gpus: tuple[str, ...]
    plan: PlanState
    models: tuple[NodeModel, ...]


class PlanOrder(Struct, forbid_unknown_fields=True):
    """A node's part of a plan: partitions on its accelerators, models by their public names.

    ``generation`` grows with every plan, whoever makes it: a node takes no older one.
    """

    generation: int
    partitions: list[Partition]


class DrainOrder(Struct, forbid_unknown_fields=True):
    """Be sent nothing new; ``generation`` as in ``PlanOrder``. A later plan ends it."""

    generation: int


class NodeControl(Protocol):
    """The node behind the transports."""

    def state(self) -> NodeState: ...
    async def take_plan(self, order: PlanOrder) -> dict[str, object]:
        """Check a plan and begin to carry it out.

        Raises:
            ServeError: SUPERSEDED by a newer generation, or it cannot be carried out here: why.
        """
        ...

    def drain(self, order: DrainOrder) -> dict[str, object]:
        """Say to be not ready from now on, and serve what comes nevertheless.

        Raises:
            ServeError: SUPERSEDED.
        """
        ...
