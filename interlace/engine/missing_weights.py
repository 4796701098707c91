"""Of many models on one accelerator, the one whose missing weights are worth most."""

from __future__ import annotations

from heapq import heapify, heappop, heappush, heapreplace
from typing import Final, Protocol

#: Bounds that hold no more may be kept, so many and as many as there are models.
_SPARE: Final = 64


class Missing(Protocol):
    """What may be missing of a model, and what it is worth to bring it."""

    @property
    def model(self) -> str: ...
    @property
    def missing_worth(self) -> float:
        """Milliseconds saved a second and byte; it falls with time until ``changed`` is called."""


class MissingWeights:
    """A heap of bounds on what missing parts are worth.

    Worths fall as long as nothing arrives and nothing is fetched or evicted, since rates do. So
    what a model's was when it was last looked at bounds it now, and only those at the top are
    looked at again: a look costs by what changed since the last one, not by how many there are.
    """

    def __init__(self) -> None:
        self._bounds: dict[str, float] = {}
        self._heap: list[tuple[float, str]] = []
        self._changed: dict[str, Missing] = {}
        self._entries: dict[str, Missing] = {}

    def changed(self, entry: Missing) -> None:
        """A request came for it, or what is there or on its way is not what it was."""
        self._changed[entry.model] = entry

    def forget(self, model: str) -> None:
        """It is not known here any more."""
        for known in (self._bounds, self._changed, self._entries):
            known.pop(model, None)

    def hottest(self) -> str | None:
        """The model whose missing part is worth most now; none if nothing is worth anything."""
        for model, entry in self._changed.items():
            self._entries[model] = entry
            self._bounds[model] = entry.missing_worth
            heappush(self._heap, (-self._bounds[model], model))
        self._changed.clear()
        if len(self._heap) > _SPARE + 2 * len(self._bounds):
            self._heap = [(-worth, model) for model, worth in self._bounds.items()]
            heapify(self._heap)
        while self._heap:
            bound, model = self._heap[0]
            if self._bounds.get(model) != -bound:
                heappop(self._heap)
                continue
            worth = self._entries[model].missing_worth
            if worth == -bound:
                return model if worth > 0.0 else None
            self._bounds[model] = worth
            heapreplace(self._heap, (-worth, model))
        return None
