"""What the models that contend for one partition have had of what was planned for them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from interlace.core.plan import Slot
from interlace.policy.fairness import planned_rows_per_s


@dataclass(slots=True)
class ServiceTags:
    """Counters by model, in ms: rows served while it contended, over its planned rate.

    Start-time fair queueing's tags (Goyal et al., SIGCOMM 1996), with a batch for a packet.
    ``begun_ms`` is the largest counter with which a batch began: who comes to contend counts from
    there, for it is owed nothing of the time before, and keeps what it had more than that.
    """

    contending: set[str] = field(default_factory=set)
    planned_rows_per_s: dict[str, float] = field(default_factory=dict)
    _counters_ms: dict[str, float] = field(default_factory=dict)
    _begun_ms: float = 0.0

    def plan(self, slots: Iterable[Slot]) -> None:
        """These have turns. Where only one has, and for guests, nothing is counted."""
        own = [slot for slot in slots if not slot.guest]
        self.planned_rows_per_s = (
            {s.model: planned_rows_per_s(s) for s in own} if len(own) > 1 else {}
        )
        self._counters_ms = {
            m: c for m, c in self._counters_ms.items() if m in self.planned_rows_per_s
        }
        self.contending &= self.planned_rows_per_s.keys()

    def contend(self, models: set[str]) -> None:
        """These contend, and nobody else, at a decision about the partition."""
        for model in models - self.contending:
            self._counters_ms[model] = max(self._counters_ms.get(model, 0.0), self._begun_ms)
        self.contending = models

    def began(self, model: str, rows: int) -> None:
        """A batch of the model began."""
        if model in self.contending:
            start_ms = self._counters_ms[model]
            self._begun_ms = max(self._begun_ms, start_ms)
            self._counters_ms[model] = start_ms + rows / self.planned_rows_per_s[model] * 1000.0

    def behind_ms(self, ahead: str) -> Mapping[str, float]:
        """Who contends and has had less than ``ahead``, which does too, and by how much."""
        if ahead not in self.contending:
            return {}
        most_ms = self._counters_ms[ahead]
        had_ms = ((model, self._counters_ms[model]) for model in self.contending)
        return {model: most_ms - ms for model, ms in had_ms if ms < most_ms}
