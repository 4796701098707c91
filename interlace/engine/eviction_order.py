"""What must be given up before a new plan can be built: shares that cannot overlap, memory."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from interlace.core.hardware import Gpu, Trait
from interlace.core.plan import Partition, Plan
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
    """Chooses what to evict for a plan, from partitions and memory as they are now.

    Built anew for each decision: it does not see later changes.
    """

    def __init__(
        self, partitions: LivePartitions, target: Plan, gpus: Iterable[Gpu], profiles: Profiles
    ) -> None:
        self._partitions = partitions
        self._wanted = {p.id: p for p in target.partitions}
        self._gpus = {gpu.id: gpu for gpu in gpus}
        self._profiles = profiles
        self._there: dict[str, list[LivePartition]] = {gpu: [] for gpu in self._gpus}
        for live in partitions.values():
            self._there.setdefault(live.gpu, []).append(live)
        self._planned: dict[str, list[Partition]] = {gpu: [] for gpu in self._gpus}
        for wanted in target.partitions:
            self._planned.setdefault(wanted.gpu, []).append(wanted)
        self._asked = {slot.model for p in target.partitions for slot in p.slots}
        self._whole: dict[str, bool] = {}  #: which hold all there is, and all that is wanted
        self._hosts = Counter(
            model for live in partitions.values() if live.accepting for model in _loaded(live)
        )

    def evictions(self) -> Evictions:
        """What must go before the plan can be built: the cheapest, and no more than needed."""
        evicted: set[_Evictable] = set()
        closed: set[str] = set()
        for gpu in self._gpus.values():
            if Trait.OVERLAPPED_REORGANISATION in gpu.traits:
                evicted |= self._for_memory(gpu)
            elif self._leaving(gpu.id):
                closed.add(gpu.id)
        for gpu_id in self._to_clear(sorted(closed)):
            evicted |= {_Evictable(live.id) for live in self._leaving(gpu_id)}
        for gpu in self._gpus.values():
            if Trait.OVERLAPPED_REORGANISATION not in gpu.traits and gpu.id not in closed:
                evicted |= self._for_memory(gpu)
        return Evictions(
            frozenset(one.partition for one in evicted if not one.model),
            frozenset((one.partition, one.model) for one in evicted if one.model),
            frozenset(closed),
        )

    def allows(self, live: LivePartition, model: str) -> bool:
        """True if a wanted model can be loaded there now, next to all that is on the accelerator.

        True, too, if only the plan itself is on it: whether that fits is for the device to say.
        """
        gpu = self._gpus[live.gpu]
        if gpu.id not in self._whole:  # thousands of models are asked for, one after the other
            self._whole[gpu.id] = self._fits(gpu, [])
        if self._whole[gpu.id]:
            return True
        here = self._there[live.gpu]
        held = [
            (one.share_pct, [*one.model_states, model] if one is live else list(one.model_states))
            for one in here
        ]
        if self._holds(gpu, held):
            return True
        return not any(True for _ in self._unwanted(gpu.id)) and not any(
            state is ModelState.UNLOADING for one in here for state in one.model_states.values()
        )

    def _for_memory(self, gpu: Gpu) -> set[_Evictable]:
        """The cheapest set without which the plan and everything that remains fit in memory."""
        gone: list[_Evictable] = []
        things = sorted(self._unwanted(gpu.id), key=self._cost)
        while len(gone) < len(things) and not self._fits(gpu, gone):
            gone.append(things[len(gone)])
        for thing in [one for one in reversed(gone) if not self._going(one)]:
            fewer = [one for one in gone if one != thing]
            if self._fits(gpu, fewer):
                gone = fewer
        return set(gone)

    def _unwanted(self, gpu: str) -> Iterator[_Evictable]:
        """Partitions and models on an accelerator that the plan does not want."""
        for live in self._there[gpu]:
            if live.state is PartitionState.GONE:
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
        """What evicting it costs: models left without a host, then the share that goes idle."""
        live = self._partitions[thing.partition]
        models = [thing.model] if thing.model else _loaded(live)
        last = sum(self._hosts[model] <= 1 for model in models) if live.accepting else 0
        share_pct = 0 if thing.model else live.share_pct
        return not self._going(thing), last, share_pct, thing.partition, thing.model

    def _going(self, thing: _Evictable) -> bool:
        """True if it is being given up already."""
        live = self._partitions[thing.partition]
        if thing.model:
            return live.model_states[thing.model] is ModelState.UNLOADING
        return live.state in (PartitionState.DRAINING, PartitionState.RELEASING)

    def _fits(self, gpu: Gpu, gone: list[_Evictable]) -> bool:
        """True if present partitions without ``gone``, and all that are planned, fit in memory."""
        here: dict[str, tuple[int, set[str]]] = {}
        for live in self._there[gpu.id]:
            if _Evictable(live.id) not in gone:
                left = {
                    model for model in live.model_states if _Evictable(live.id, model) not in gone
                }
                here[live.id] = (live.share_pct, left)
        for wanted in self._planned[gpu.id]:
            entry = here.setdefault(wanted.id, (wanted.share_pct, set()))
            entry[1].update(slot.model for slot in wanted.slots)
        return self._holds(gpu, [(share, sorted(models)) for share, models in here.values()])

    def _holds(self, gpu: Gpu, held: list[tuple[int, list[str]]]) -> bool:
        # A model without a profile is not deployed any more, and is being unloaded.
        known = [(share, [m for m in models if m in self._profiles]) for share, models in held]
        return holds(gpu, known, self._profiles)

    def _leaving(self, gpu: str) -> list[LivePartition]:
        return [
            live
            for live in self._there[gpu]
            if live.id not in self._wanted and live.state is not PartitionState.GONE
        ]

    def _to_clear(self, closed: list[str]) -> list[str]:
        """Of accelerators that must be emptied before they are cut anew, those to empty now.

        An accelerator is emptied while other accelerators serve its models. If that holds for none
        and nothing is changing anywhere, the one that leaves the fewest models without a host is.
        """
        chosen = [gpu for gpu in closed if any(_changing(live) for live in self._leaving(gpu))]
        hosts = self._hosts.copy()
        for gpu in chosen:
            hosts -= self._served_by(gpu)
        orphans: dict[str, int] = {}
        for gpu in (one for one in closed if one not in chosen):
            served = self._served_by(gpu)
            orphans[gpu] = sum(hosts[model] <= count for model, count in served.items())
            if not orphans[gpu]:
                chosen.append(gpu)
                hosts -= served
        if not chosen and orphans and not self._change_goes_on(closed):
            chosen.append(min(orphans, key=lambda gpu: (orphans[gpu], gpu)))
        return chosen

    def _served_by(self, gpu: str) -> Counter[str]:
        """Hosts of wanted models among the partitions that leave an accelerator."""
        return Counter(
            model
            for live in self._leaving(gpu)
            if live.accepting
            for model in _loaded(live)
            if model in self._asked
        )

    def _change_goes_on(self, closed: list[str]) -> bool:
        """True if a partition is changing, or will without an accelerator being emptied."""
        if any(_changing(live) for live in self._partitions.values()):
            return True
        return any(
            not _serves(self._partitions.get(p.id), [slot.model for slot in p.slots])
            for p in self._wanted.values()
            if p.gpu not in closed
        )


def _loaded(live: LivePartition) -> list[str]:
    return [model for model in live.model_states if live.loaded(model)]


def _changing(live: LivePartition) -> bool:
    """True if the partition or a model in it is between two states."""
    changing = any(state is not ModelState.LOADED for state in live.model_states.values())
    return changing or live.state in (
        PartitionState.CREATING,
        PartitionState.DRAINING,
        PartitionState.RELEASING,
    )


def _serves(live: LivePartition | None, models: list[str]) -> bool:
    return live is not None and live.accepting and all(live.loaded(model) for model in models)
