"""Large plans: where a promise breaks, hosts are added there, and the rest stays as it is."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from math import ceil
from typing import Final

from interlace.core.gpu_kinds import uniform_fleet
from interlace.core.hardware import Gpu
from interlace.core.plan import Partition, Plan
from interlace.perf.memory import holds
from interlace.planning.tried_plan import PlanTrials, TriedPlan

#: How often hosts are added, and the part of a pool's hosts that is added each time.
_ROUNDS: Final = 4
_MORE: Final = 0.08


def mended(found: TriedPlan, trials: PlanTrials) -> TriedPlan:
    """The plan with more hosts for models whose promise broke, until none does.

    A sample holds few requests of each model, so parts in which a promise broke are tried again
    first, as long as a whole plan. Where that shows a promise to be broken hosts are added, and
    with the parts that got them as many are tried that were not before. So the time is bounded,
    and what is still broken then is told. Ends, too, where no accelerator is left.
    """
    plan, rounds, added = found.plan, 0, False
    while (broken := found.trial.broken) and not plan.underserved:
        found = trials.tried_again(found, plan, broken, fresh=added)
        still = [model for model in found.trial.broken if model in broken]
        added = bool(still)
        if added:
            more = _with_hosts(plan, still, trials) if rounds < _ROUNDS else None
            if more is None:
                break
            plan, rounds = trials.as_asked(more), rounds + 1
    return found


def _with_hosts(plan: Plan, broken: Sequence[str], trials: PlanTrials) -> Plan | None:
    """The plan with further partitions like the broken models'; ``None`` if they do not fit."""
    room = _Room(plan, trials)
    served: set[str] = set()
    for model in broken:
        if model in served:
            continue  # beside one that was worse
        hosts = [p for p in plan.partitions if any(s.model == model for s in p.slots)]
        best = max(hosts, key=lambda p: (_planned(p, model), p.id))
        served |= {slot.model for slot in best.slots}
        for _ in range(ceil(_MORE * len(hosts))):
            if not room.put(best):
                return None
    return replace(plan, partitions=(*plan.partitions, *room.added))


def _planned(part: Partition, model: str) -> float:
    return sum(slot.rows_per_s for slot in part.slots if slot.model == model)


class _Room:
    """Where further partitions fit: accelerators in use first, then fresh ones."""

    def __init__(self, plan: Plan, trials: PlanTrials) -> None:
        self.added: list[Partition] = []
        self._profiles = trials.scenario.busy_profiles
        fleet = uniform_fleet(trials.scenario.gpu, trials.scenario.limit)
        self._here: dict[str, list[Partition]] = {gpu.id: [] for gpu in fleet.gpus}
        self._gpus: Mapping[str, Gpu] = {gpu.id: gpu for gpu in fleet.gpus}
        self._names = {part.id for part in plan.partitions}
        for part in plan.partitions:
            self._here[part.gpu].append(part)

    def put(self, like: Partition) -> bool:
        """Add a partition like that one; false if it fits nowhere."""
        for gpu in self._offered():
            after = [*self._here[gpu.id], like]
            held = [(p.share_pct, [slot.model for slot in p.slots]) for p in after]
            legal = gpu.legal([p.share_pct for p in after])
            if legal and holds(gpu, held, self._profiles):
                number = len(self._here[gpu.id])
                while (name := f"{gpu.id}:{number}") in self._names:
                    number += 1
                self._names.add(name)
                self.added.append(replace(like, id=name, gpu=gpu.id))
                self._here[gpu.id].append(self.added[-1])
                return True
        return False

    def _offered(self) -> Iterator[Gpu]:
        """Accelerators with something idle, in use before fresh."""
        idle = [
            (gpu, parts)
            for gpu, parts in self._here.items()
            if sum(p.share_pct for p in parts) < 100
        ]
        for gpu, _ in sorted(idle, key=lambda one: not one[1]):
            yield self._gpus[gpu]
