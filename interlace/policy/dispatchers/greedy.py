"""What fits now by one measure: the most requests per second, or the smallest share first."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from interlace.policy.decision import Dispatch, Launch
from interlace.policy.view import PartitionView, View, available_partitions


class _Choice(NamedTuple):
    partition: PartitionView
    model: str
    rows: int
    rows_per_ms: float

    @property
    def more_pct(self) -> int:
        """What it takes of the share that is free; a partition that runs has its own."""
        return 0 if self.partition.running is not None else self.partition.share_pct


def max_throughput(view: View, now_ms: float) -> Dispatch:
    """The batches that together yield most requests per second in the share that is free.

    D-STACK section 6.3's *max-throughput*: a knapsack of the shares of models that do not run,
    solved exactly, at every arrival and end.
    """
    best: dict[int, tuple[float, tuple[_Choice, ...]]] = {0: (0.0, ())}
    for choice in _choices(view, now_ms):
        for used_pct, (worth, chosen) in sorted(best.items(), reverse=True):
            total_pct = used_pct + choice.more_pct
            with_it = worth + choice.rows_per_ms
            if total_pct <= _free_pct(view) and with_it > best.get(total_pct, (0.0, ()))[0]:
                best[total_pct] = (with_it, (*chosen, choice))
    _, chosen = max(best.values(), key=lambda found: found[0])
    return _launched(chosen)


def max_min(view: View, now_ms: float) -> Dispatch:
    """The smallest demand first: D-STACK section 6.3's *max-min* over shares.

    Models that do not run begin in the order of their shares, those that had the least time on the
    accelerator first among equals, for as long as their shares are free.
    """
    free_pct = _free_pct(view)
    chosen: list[_Choice] = []
    for choice in sorted(_choices(view, now_ms), key=lambda choice: _claim(choice, view)):
        if choice.more_pct <= free_pct:
            free_pct -= choice.more_pct
            chosen.append(choice)
    return _launched(chosen)


def _claim(choice: _Choice, view: View) -> tuple[int, float, str]:
    return choice.partition.share_pct, view.history.tally(choice.model).busy_ms, choice.model


def _free_pct(view: View) -> int:
    return 100 - sum(p.share_pct for p in view.partitions if p.running is not None)


def _choices(view: View, now_ms: float) -> list[_Choice]:
    """A batch for every partition that takes one, with something queued."""
    found: list[_Choice] = []
    for partition in available_partitions(view, now_ms):
        for slot in partition.slots:
            queue = view.queue(slot.model)
            if queue.head is None:
                continue
            rows = queue.batch_rows(max(slot.batch, queue.head.rows))
            run_ms = view.model(slot.model).latency_ms(rows, partition.share_pct)
            found.append(_Choice(partition, slot.model, rows, rows / run_ms))
            break
    return found


def _launched(chosen: Sequence[_Choice]) -> Dispatch:
    taken: set[str] = set()
    launches: list[Launch] = []
    for choice in chosen:
        if choice.model not in taken:  # one batch of a model at a time: its queue is one
            taken.add(choice.model)
            launches.append(Launch(choice.partition.id, choice.model, choice.rows))
    return Dispatch(tuple(launches))
