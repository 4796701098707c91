"""Models that move to another node stay on the old one until the new one serves them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, replace

from interlace.core.hardware import Gpu
from interlace.core.plan import Partition, Plan, Slot
from interlace.core.profile import Profiles
from interlace.fleet.fleet_gpus import models_of, own_models_of
from interlace.perf.memory import holds_partitions


def keeping(
    after: Plan, before: Plan, leaving: Iterable[str], gpus: Mapping[str, Gpu], profiles: Profiles
) -> Plan:
    """A node's part of the next plan, with models of its part ``before`` that are to leave later.

    Such a model keeps a turn on its accelerator, in its own partition if that stays, else in the
    widest; where nothing else is planned, its partition stays. One that does not fit into memory
    beside what is planned leaves at once. ``gpus`` are the node's, by id.
    """
    parts = {part.id: part for part in after.partitions}
    for model in sorted(leaving):
        turns = ((p, s) for p in before.partitions for s in p.slots if s.model == model)
        found = next(((part, slot) for part, slot in turns if not slot.guest), None)
        if found is None:
            continue
        home = _home(*found, parts.values())
        there = [p for p in {**parts, home.id: home}.values() if p.gpu == home.gpu]
        if home.gpu in gpus and holds_partitions(gpus[home.gpu], there, profiles):
            parts[home.id] = home
    return replace(after, partitions=tuple(parts.values()))


@dataclass(frozen=True, slots=True)
class NodePart:
    """A node's part of the plan before and after, its accelerators by id, and their profiles."""

    before: Plan
    after: Plan
    gpus: Mapping[str, Gpu]
    profiles: Profiles

    @property
    def comes(self) -> set[str]:
        """Models that it has not had, to serve them in turns of their own."""
        return own_models_of(self.after.partitions) - models_of(self.before.partitions)

    @property
    def guests(self) -> set[str]:
        """Models that it is to serve in others' time alone."""
        return models_of(self.after.partitions) - own_models_of(self.after.partitions)


def handed_over(
    parts: Mapping[str, NodePart], moving: AbstractSet[str]
) -> tuple[dict[str, Plan], dict[str, str]]:
    """What each node is to serve now, and why models leave that are served nowhere else yet.

    ``moving`` are models that some node is to serve and does not answer yet: other nodes keep them.
    If arriving and leaving models do not fit into memory together, guests wait. Then models that
    move here from another node stay there, until a leaving model has left. If nodes wait for each
    other in a circle, one lets go first. Every part fits into memory if those of the plan do.
    """
    made = {node: _Step(node, part, parts, moving) for node, part in parts.items()}
    lost: dict[str, str] = {}
    while stuck := _stuck(made, parts):
        made[min(stuck)].let_go()
    for node, step in made.items():
        for model in step.lost:
            lost[model] = f"node {node} has no memory for it beside what comes there"
    return {node: step.plan for node, step in made.items()}, lost


class _Step:
    """A node's next step: what it keeps, waits with, and gives up for want of room."""

    def __init__(
        self,
        node: str,
        part: NodePart,
        parts: Mapping[str, NodePart],
        moving: AbstractSet[str],
    ) -> None:
        self._part = part
        late = own_models_of(part.before.partitions) & moving & part.profiles.keys()
        self.leaving = late - models_of(part.after.partitions)
        self.waits: set[str] = set()
        self.lost: set[str] = set()
        self.let_go()
        if not self.lost:
            return
        elsewhere = (models_of(p.before.partitions) for name, p in parts.items() if name != node)
        comes = part.comes & moving & set[str]().union(*elsewhere)
        large_first = sorted(comes, key=lambda one: (-part.profiles[one].weights_bytes, one))
        for model in (*sorted(part.guests), *large_first):
            self.waits.add(model)
            self._try()
            if not self.lost:
                return
        self.let_go()  # that is not enough

    def let_go(self) -> None:
        """Wait with nothing: leaving models that do not fit beside arriving ones leave at once."""
        self.waits = set()
        self._try()

    def _try(self) -> None:
        part = self._part
        after = _without(part.after, self.waits)
        self.plan = keeping(after, part.before, self.leaving, part.gpus, part.profiles)
        self.lost = self.leaving - models_of(self.plan.partitions)


def _stuck(steps: Mapping[str, _Step], parts: Mapping[str, NodePart]) -> set[str]:
    """Nodes that wait for something which waits, in the end, for them."""
    waiting = {node for node, step in steps.items() if step.waits}
    goes_to: dict[str, list[str]] = {}
    for node in waiting:  # few nodes wait, if any
        for model in steps[node].leaving:
            goes_to[model] = [n for n in waiting if model in parts[n].comes]
    free: set[str] = set()
    while True:
        more = {
            node
            for node in waiting - free
            if all(
                other in free or model not in steps[other].waits
                for model in steps[node].leaving
                for other in goes_to[model]
            )
        }
        if not more:
            return waiting - free
        free |= more


def _without(plan: Plan, models: AbstractSet[str]) -> Plan:
    if not models:
        return plan
    cut = (
        replace(part, slots=tuple(slot for slot in part.slots if slot.model not in models))
        for part in plan.partitions
    )
    return replace(plan, partitions=tuple(part for part in cut if part.slots))


def _home(old: Partition, slot: Slot, parts: Iterable[Partition]) -> Partition:
    """The partition that a model is to stay in, with it."""
    here = [part for part in parts if part.gpu == old.gpu]
    if not here:
        return replace(old, slots=(slot,))
    widest = max(here, key=lambda part: (part.id == old.id, part.share_pct, part.id))
    return replace(widest, slots=(*widest.slots, slot))
