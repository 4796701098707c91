"""What has to go before a new plan can stand: shares that cannot overlap, memory for one plan."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from interlace.core.hardware import Gpu, Trait
from interlace.core.plan import Plan
from interlace.core.profile import Profiles
from interlace.engine.live_partition import LivePartition, ModelState, PartitionState
from interlace.engine.plan_diff import Evictions, LivePartitions
from interlace.perf.memory import holds


@dataclass(frozen=True, slots=True)
class _Evictable:
    """A leaving partition (``model`` is empty), or one model of a partition that remains."""

    partition: str
    model: str = ""


class EvictionOrder:
    """What goes first, given the partitions, the plan and every accelerator's memory right now."""

    def __init__(
        self, partitions: LivePartitions, target: Plan, gpus: Iterable[Gpu], profiles: Profiles
    ) -> None:
        self._partitions = partitions
        self._wanted = {p.id: p for p in target.partitions}
        self._gpus = {gpu.id: gpu for gpu in gpus}
        self._profiles = profiles
        self._hosts = Counter(
            model for live in partitions.values() if live.accepting for model in _loaded(live)
        )

    def first(self) -> Evictions:
        """What must go before the wanted stands, cheapest first, no more than needed."""
        things: set[_Evictable] = set()
        shut: set[str] = set()
        for gpu in self._gpus.values():
            if Trait.OVERLAPPED_REORGANISATION in gpu.traits:
                things |= self._crowded_out(gpu)
            elif self._leaving(gpu.id):
                shut.add(gpu.id)
        for gpu_id in self._in_turn(sorted(shut)):
            things |= {_Evictable(live.id) for live in self._leaving(gpu_id)}
        for gpu in self._gpus.values():
            if Trait.OVERLAPPED_REORGANISATION not in gpu.traits and gpu.id not in shut:
                things |= self._crowded_out(gpu)
        return Evictions(
            frozenset(one.partition for one in things if not one.model),
            frozenset((one.partition, one.model) for one in things if one.model),
            frozenset(shut),
        )

    def allows(self, live: LivePartition, model: str) -> bool:
        """True if the model can be loaded there now, beside all that is on the accelerator.

        A plan that alone is too large is the device's to refuse, once nothing else is in its way.
        """
        gpu = self._gpus[live.gpu]
        here = [one for one in self._partitions.values() if one.gpu == live.gpu]
        held = [
            (one.share_pct, [*one.model_states, model] if one is live else list(one.model_states))
            for one in here
        ]
        if self._holds(gpu, held):
            return True
        return not any(True for _ in self._things(gpu.id)) and not any(
            stay is ModelState.UNLOADING for one in here for stay in one.model_states.values()
        )

    def _crowded_out(self, gpu: Gpu) -> set[_Evictable]:
        """The cheapest that, gone, leaves memory for everything wanted beside what is left."""
        gone: list[_Evictable] = []
        things = sorted(self._things(gpu.id), key=self._cost)
        while not self._fits(gpu, gone) and len(gone) < len(things):
            gone.append(things[len(gone)])
        for thing in [one for one in reversed(gone) if not self._going(one)]:
            fewer = [one for one in gone if one != thing]
            if self._fits(gpu, fewer):
                gone = fewer
        return set(gone)

    def _things(self, gpu: str) -> Iterator[_Evictable]:
        """What is on an accelerator and not wanted."""
        for live in self._partitions.values():
            if live.gpu != gpu or live.state is PartitionState.GONE:
                continue
            wanted = self._wanted.get(live.id)
            if wanted is None:
                yield _Evictable(live.id)
                continue
            models = {slot.model for slot in wanted.slots}
            yield from (
                _Evictable(live.id, model) for model in live.model_states if model not in models
            )

    def _cost(self, thing: _Evictable) -> tuple[bool, int, int, str, str]:
        """What serving loses: models left without a host, then the share that stands idle."""
        live = self._partitions[thing.partition]
        models = [thing.model] if thing.model else _loaded(live)
        last = sum(self._hosts[model] <= 1 for model in models) if live.accepting else 0
        share_pct = 0 if thing.model else live.share_pct
        return not self._going(thing), last, share_pct, thing.partition, thing.model

    def _going(self, thing: _Evictable) -> bool:
        """True if it is on its way out already."""
        live = self._partitions[thing.partition]
        if thing.model:
            return live.model_states[thing.model] is ModelState.UNLOADING
        return live.state in (PartitionState.DRAINING, PartitionState.RELEASING)

    def _fits(self, gpu: Gpu, gone: list[_Evictable]) -> bool:
        """True if there is memory for what is there, less what is gone, and all that is wanted."""
        here: dict[str, tuple[int, set[str]]] = {}
        for live in self._partitions.values():
            if live.gpu == gpu.id and _Evictable(live.id) not in gone:
                left = {
                    model for model in live.model_states if _Evictable(live.id, model) not in gone
                }
                here[live.id] = (live.share_pct, left)
        for wanted in self._wanted.values():
            if wanted.gpu == gpu.id:
                entry = here.setdefault(wanted.id, (wanted.share_pct, set()))
                entry[1].update(slot.model for slot in wanted.slots)
        return self._holds(gpu, [(share, sorted(models)) for share, models in here.values()])

    def _holds(self, gpu: Gpu, held: list[tuple[int, list[str]]]) -> bool:
        # What is not deployed has no profile, and is on its way out.
        known = [(share, [m for m in models if m in self._profiles]) for share, models in held]
        return holds(gpu, known, self._profiles)

    def _leaving(self, gpu: str) -> list[LivePartition]:
        return [
            live
            for live in self._partitions.values()
            if live.gpu == gpu
            and live.id not in self._wanted
            and live.state is not PartitionState.GONE
        ]

    def _in_turn(self, shut: list[str]) -> list[str]:
        """Of accelerators where old goes before new, those whose turn it is.

        One after the other where a model would be without a host otherwise: an accelerator may
        go if what it serves is also served elsewhere; if none may and nothing is under way, the one
        that leaves the fewest models without a host does.
        """
        chosen = [gpu for gpu in shut if any(_moves(live) for live in self._leaving(gpu))]
        hosts = self._hosts.copy()
        for gpu in chosen:
            hosts -= self._served_by(gpu)
        orphans: dict[str, int] = {}
        for gpu in (one for one in shut if one not in chosen):
            served = self._served_by(gpu)
            orphans[gpu] = sum(hosts[model] <= count for model, count in served.items())
            if not orphans[gpu]:
                chosen.append(gpu)
                hosts -= served
        if not chosen and orphans and not self._under_way(shut):
            chosen.append(min(orphans, key=lambda gpu: (orphans[gpu], gpu)))
        return chosen

    def _served_by(self, gpu: str) -> Counter[str]:
        """Hosts of wanted models among the partitions that leave an accelerator."""
        wanted = {slot.model for p in self._wanted.values() for slot in p.slots}
        return Counter(
            model
            for live in self._leaving(gpu)
            if live.accepting
            for model in _loaded(live)
            if model in wanted
        )

    def _under_way(self, shut: list[str]) -> bool:
        """True if something moves, or is about to where the way is free."""
        if any(_moves(live) for live in self._partitions.values()):
            return True
        return any(
            not _stands(self._partitions.get(p.id), [slot.model for slot in p.slots])
            for p in self._wanted.values()
            if p.gpu not in shut
        )


def _loaded(live: LivePartition) -> list[str]:
    return [model for model in live.model_states if live.loaded(model)]


def _moves(live: LivePartition) -> bool:
    """True if something is under way in it."""
    changing = any(stay is not ModelState.LOADED for stay in live.model_states.values())
    return changing or live.state in (
        PartitionState.CREATING,
        PartitionState.DRAINING,
        PartitionState.RELEASING,
    )


def _stands(live: LivePartition | None, models: list[str]) -> bool:
    return live is not None and live.accepting and all(live.loaded(model) for model in models)
