"""Fair queueing among the models that contend for a partition, or for partitions that overlap."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

from interlace.core.plan import Slot
from interlace.policy.fairness import planned_rows_per_s

_NONE: Final[Mapping[str, float]] = {}


@dataclass(slots=True)
class ServiceTags:
    """Start-time fair queueing's tags (Goyal et al., SIGCOMM 1996), with a batch for a packet.

    A model's tag, in ms, is the rows it was served while it contended over its planned rate.
    ``_virtual_ms`` is the largest tag with which a batch began. A model that begins to contend
    starts there, since nothing is owed to it for the time before, or at its old tag if that is
    larger.
    """

    contending: set[str] = field(default_factory=set)
    planned_rows_per_s: dict[str, float] = field(default_factory=dict)
    _tags_ms: dict[str, float] = field(default_factory=dict)
    _virtual_ms: float = 0.0

    def plan(self, slots: Iterable[Slot]) -> None:
        """Set the models that have a turn; with only one, or for guests, nothing is counted."""
        planned: dict[str, float] = {}
        for slot in slots:
            if not slot.guest:
                planned[slot.model] = planned.get(slot.model, 0.0) + planned_rows_per_s(slot)
        self.planned_rows_per_s = planned if len(planned) > 1 else {}
        self._tags_ms = {m: c for m, c in self._tags_ms.items() if m in self.planned_rows_per_s}
        self.contending &= self.planned_rows_per_s.keys()

    def contend(self, models: set[str]) -> None:
        """Set the models that contend at this decision."""
        for model in models - self.contending:
            self._tags_ms[model] = max(self._tags_ms.get(model, 0.0), self._virtual_ms)
        self.contending = models

    def began(self, model: str, rows: int) -> None:
        """A batch of the model began."""
        if model in self.contending:
            start_ms = self._tags_ms[model]
            self._virtual_ms = max(self._virtual_ms, start_ms)
            self._tags_ms[model] = start_ms + rows / self.planned_rows_per_s[model] * 1000.0

    def lags_ms(self) -> Mapping[str, float]:
        """How far each contending model is behind the one of them with the largest tag."""
        if not self.contending:
            return _NONE
        most_ms = max(self._tags_ms[model] for model in self.contending)
        return {model: most_ms - self._tags_ms[model] for model in self.contending}
