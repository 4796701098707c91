"""Which nodes are lost to a controller: by silence longer than they are known to survive."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from math import inf
from typing import Final

LEAST_MS: Final = 800.0
MOST_MS: Final = 8000.0
MEMORY_MS: Final = 60_000.0
_FACTOR: Final = 2.0


class Presence:
    """Judges losses by when nodes were heard last. Times are the controller's own.

    A node may be silent for ``_FACTOR`` times the longest silence that it survived within the last
    ``MEMORY_MS``, between ``LEAST_MS`` and ``MOST_MS``: then its models are planned for elsewhere.
    Routers ask other nodes long before. So a node that is often late does not change the plan each
    time. A silence for which it was declared lost does not count: the next loss is answered as soon
    as the first.
    """

    def __init__(self) -> None:
        self._heard_ms: dict[str, float] = {}
        #: by node: silences that ended, and when; each is shorter than those before it
        self._survived: dict[str, deque[tuple[float, float]]] = {}

    def lost(
        self, heard_ms: Mapping[str, float], refusing: AbstractSet[str], now_ms: float
    ) -> set[str]:
        """The nodes that are lost, of all that there are, each with when it was heard last.

        Where a connection is refused (``refusing``) the process has ended. Else silence counts, but
        not while nobody is heard: then it is the controller that is late or cut off.
        """
        for node in self._heard_ms.keys() - heard_ms.keys():
            del self._heard_ms[node]
            self._survived.pop(node, None)
        for node in refusing:
            self._heard_ms.pop(node, None)  # what begins there next is another process
            self._survived.pop(node, None)
        for node in heard_ms.keys() - refusing:
            self._note(node, heard_ms[node], now_ms)
        late = {n for n, at_ms in heard_ms.items() if now_ms - at_ms > self.patience_ms(n)}
        return {*(refusing & heard_ms.keys()), *(late if len(late) < len(heard_ms) else ())}

    def patience_ms(self, node: str) -> float:
        """For how long that node may be silent."""
        survived = self._survived.get(node)
        longest_ms = survived[0][1] if survived else 0.0
        return min(max(LEAST_MS, _FACTOR * longest_ms), MOST_MS)

    def _note(self, node: str, at_ms: float, now_ms: float) -> None:
        survived = self._survived.setdefault(node, deque())
        while survived and now_ms - survived[0][0] > MEMORY_MS:
            survived.popleft()
        silence_ms = at_ms - self._heard_ms.get(node, inf)
        self._heard_ms[node] = at_ms
        if 0.0 < silence_ms <= self.patience_ms(node):
            while survived and survived[-1][1] <= silence_ms:
                survived.pop()
            survived.append((at_ms, silence_ms))
