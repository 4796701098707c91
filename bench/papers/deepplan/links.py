"""Copies to several GPUs at once: two on one switch have half of its link each.

A GPU's own link is a queue, as in the released engine, so it has one flow: the times of its pieces
on an idle link.
"""

from collections import Counter
from collections.abc import Sequence
from typing import Final, NamedTuple

#: A p3.8xlarge: two switches with two GPUs each (section 4.3.3).
SWITCH_OF: Final = (0, 0, 1, 1)


class LinkFlow(NamedTuple):
    """Copies in order over one GPU's link, in ms on an idle one."""

    gpu: int
    pieces_ms: Sequence[float]

    @property
    def switch(self) -> int:
        return SWITCH_OF[self.gpu]


def arrivals_ms(flows: Sequence[LinkFlow]) -> list[list[float]]:
    """When each piece of each flow has come, all flows begun at once."""
    left = [list(flow.pieces_ms)[::-1] for flow in flows]
    came: list[list[float]] = [[] for _ in flows]
    now_ms = 0.0
    while active := [index for index, pieces in enumerate(left) if pieces]:
        users = Counter(flows[index].switch for index in active)
        rates = {index: 1 / users[flows[index].switch] for index in active}
        step_ms = min(left[index][-1] / rates[index] for index in active)
        now_ms += step_ms
        for index in active:
            left[index][-1] -= step_ms * rates[index]
            if left[index][-1] <= 1e-9:
                left[index].pop()
                came[index].append(now_ms)
    return came
