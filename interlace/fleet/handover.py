"""Models that go to another node stay where they are until they stand there."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

from interlace.core.hardware import Gpu
from interlace.core.plan import Partition, Plan, Slot
from interlace.core.profile import Profiles
from interlace.perf.memory import holds


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
        there = {**parts, home.id: home}.values()
        held = [(p.share_pct, [s.model for s in p.slots]) for p in there if p.gpu == home.gpu]
        if home.gpu in gpus and holds(gpus[home.gpu], held, profiles):
            parts[home.id] = home
    return replace(after, partitions=tuple(parts.values()))


def _home(old: Partition, slot: Slot, parts: Iterable[Partition]) -> Partition:
    """The partition that a model is to stay in, with it."""
    here = [part for part in parts if part.gpu == old.gpu]
    if not here:
        return replace(old, slots=(slot,))
    widest = max(here, key=lambda part: (part.id == old.id, part.share_pct, part.id))
    return replace(widest, slots=(*widest.slots, slot))
