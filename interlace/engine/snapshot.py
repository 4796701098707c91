"""The engine's state at one instant, frozen: all that code outside this package may read of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from interlace.core.hardware import Fleet
from interlace.core.messages import Run
from interlace.core.plan import Plan, Slot
from interlace.core.profile import Profile
from interlace.engine.live_partition import LivePartition, ModelState, PartitionState
from interlace.engine.plan_diff import reached
from interlace.engine.residency import ModelWeights
from interlace.engine.state import DeployedModel, EngineState


@dataclass(frozen=True, slots=True)
class BatchSnapshot:
    """A batch that was sent to a partition, with its start and its predicted end."""

    run: Run
    started_ms: float
    expected_end_ms: float


@dataclass(frozen=True, slots=True)
class PartitionSnapshot:
    """One partition: ``batches`` are the running one and the one queued behind it, if any.

    ``slots`` are the turns whose models are loaded; ``models`` all models in it, in any state.
    """

    id: str
    gpu: str
    share_pct: int
    state: PartitionState
    accepting: bool  #: ready, and its process lives
    units: tuple[int, ...]
    slots: tuple[Slot, ...]
    models: Mapping[str, ModelState]
    resident_bytes: Mapping[str, int]
    batches: tuple[BatchSnapshot, ...]
    started_ms: Mapping[str, float]  #: each model's last start here

    @property
    def loaded(self) -> bool:
        """True if no model is being loaded or unloaded."""
        return all(state is ModelState.LOADED for state in self.models.values())


@dataclass(frozen=True, slots=True)
class WeightsSnapshot:
    """A model's swapped weights on one accelerator.

    ``state`` is "resident" if all that its plan loads is loaded, "loading" during the load, or
    "cold". ``cold_ms`` is how long its ``cold_starts`` took together.
    """

    state: str
    held_bytes: int
    total_bytes: int
    cold_starts: int
    cold_ms: float


@dataclass(frozen=True, slots=True)
class ModelSnapshot:
    """One deployed model. ``hosts`` are the ready partitions in which it has a turn.

    ``weights`` are by accelerator, where they are swapped.
    """

    profile: Profile
    waiting_rows: int
    admission_margin_ms: float
    hosts: tuple[str, ...]
    quarantine_reason: str | None
    leaving: bool
    weights: Mapping[str, WeightsSnapshot]

    @property
    def served(self) -> bool:
        """True if plans are made for it."""
        return self.quarantine_reason is None and not self.leaving


@dataclass(frozen=True, slots=True)
class EngineSnapshot:
    """Partitions by id, models by deployment key, and the plan that they are brought in line with.

    ``reached``: every model that the plan wants is loaded where it wants it, and nothing else
    stands.
    """

    fleet: Fleet
    target: Plan
    partitions: Mapping[str, PartitionSnapshot]
    models: Mapping[str, ModelSnapshot]
    partitions_lost: int
    reached: bool


def take_snapshot(state: EngineState, models: bool = True) -> EngineSnapshot:
    """Copy all mutable state; without ``models`` none of the models, which may be thousands."""
    return EngineSnapshot(
        state.fleet,
        state.target,
        {live.id: _partition(live) for live in state.partitions.values()},
        {key: _model(deployed) for key, deployed in state.models.items()} if models else {},
        state.partitions_lost,
        reached(state.partitions, state.target),
    )


def _partition(live: LivePartition) -> PartitionSnapshot:
    return PartitionSnapshot(
        live.id,
        live.gpu,
        live.share_pct,
        live.state,
        live.accepting,
        live.units,
        tuple(live.slots),
        dict(live.model_states),
        dict(live.resident_bytes),
        tuple(BatchSnapshot(b.run, b.started_ms, b.expected_end_ms) for b in live.batches),
        dict(live.starts_ms),
    )


def _model(deployed: DeployedModel) -> ModelSnapshot:
    return ModelSnapshot(
        deployed.profile,
        deployed.queue.rows + sum(pool.waiting_rows for pool in deployed.pools.values()),
        deployed.admission_margin.margin_ms,
        tuple(host.id for host in deployed.hosts),
        deployed.quarantine_reason,
        deployed.leaving,
        {gpu: _weights(entry) for gpu, entry in deployed.weights.items()},
    )


def _weights(entry: ModelWeights) -> WeightsSnapshot:
    state = "resident" if entry.warm else "loading" if entry.fetching else "cold"
    every = range(len(entry.curve.layers))
    return WeightsSnapshot(
        state, entry.held_bytes, entry.curve.nbytes(every), entry.cold_starts, entry.cold_ms
    )
