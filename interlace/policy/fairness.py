"""Fairness in overload: of two models that lose requests, neither falls far behind the other.

Deadlines decide as long as all requests are served. Where some are lost, deadlines alone would
starve models with long ones, so a model that *contends* for a partition is kept close to the others
that do. It contends while, at every decision about the partition, it has lost a request (refused,
dropped or late) within the last second and a whole planned batch of it waits. Each has a counter in
ms, the rows it was served over its planned rate: the time in which they would have arrived as
planned. Start-time fair queueing counts so (Goyal et al., SIGCOMM 1996), and VTC (Sheng et al.,
OSDI 2024). A contending model that is ``BATCHES`` of its planned batches or more behind the one
that deadlines choose is *owed* one; of those, the one that is furthest behind goes first.

The bound. Let b_i be the planned batch of model i in rows, r_i its planned rate in rows per ms,
and B_i its largest batch here in rows (b_i, unless one request has more). While i and j contend for
a partition, with heads of equal stated priority, their counters differ by less than

    c_j - c_i  <  BATCHES * b_i / r_i  +  B_j / r_j        (ms of planned arrivals),

the batches that i waits before it is owed one, and the batch of j that runs. For when a batch of j
begins, either j was chosen by deadline and i was not owed one, or j was owed one, and then i was
not, or had had no less. A model that begins to contend starts from the largest counter with which
a batch began, which is within one batch of all others. A counter grows by service only, so over any
time in which both contend what they get differs by less than both bounds together,

    | W_j / r_j - W_i / r_i |  <  (BATCHES * b_i + B_i) / r_i  +  (BATCHES * b_j + B_j) / r_j,

however long it lasts. A turn lasts until a decision finds no whole batch: also one that another
partition of the same model takes at that very moment.

Where partitions overlap, models contend for the accelerator, and a counter adds up all its
partitions. Services cannot be kept together there: a small lane may run in room that no other lane
fits into, and to leave that empty would serve nobody. The bound is on how long a model that is
behind waits. A model is owed a batch when it is ``BATCHES`` of its planned batches behind the most
served model that contends. The model furthest behind goes first, by name among equals, but others
may pass it while it finds no room. A model that is ``OVERDUE`` times as far behind is *overdue*: it
goes before those. While it finds no room, no batch begins that would delay it.

Take the overdue model that is furthest behind, with an idle lane and true predictions. It begins at
the latest when all batches have ended that ran as it came to be furthest behind. Then the
accelerator is free but for batches begun since. None of these was to end after the moment at which
the model could begin without them. Each batch of the model moves its counter by b_i / r_i, so every
overdue model is furthest behind in its turn.

A model that is asked for seldom is never so far behind: each of its requests ends before a lag adds
up. Where partitions overlap, a model that lost ``BATCHES`` planned batches since it last began one
is *starved*. It goes after models that are owed a batch and before the rest. When it lost
``OVERDUE`` times as many, the rest do not pass it either. It is chosen only where no model is owed
a batch, so the bounds above hold.

To keep room for all models that are owed, not only overdue ones, costs more than it gives. In
overload (D-STACK's C-3 to C-7 at 1.3 of the ceiling) it costs 0.3 to 2.1 of 100 requests. The
worst-off model of the eight cases then gets from 5.5 less to 3.0 more.

A request may take longer than its model's SLO where nobody set that (``Model.limit_ms``). By their
deadlines such requests come after all others, and they lose nothing that would make their model
contend. So a batch of it is *due* in each partition as often as the plan has it, and at least once
in every SLO. It goes before the others then, and waits behind them for the rest of the time.

The price is goodput counted in requests: the time that a model of long rows gets back would have
served more short ones. ``BATCHES`` lets bursts pass, in which deadlines serve more. At nine tenths
of the ceiling with gaps of CV 4 (D-STACK C-4), 1 costs 0.8 % of the requests in time, 3 0.4 %.
"""

from __future__ import annotations

from typing import Final

from interlace.core.plan import Slot
from interlace.core.request import Request
from interlace.policy.view import ModelView, PartitionView

#: How many of its planned batches a model waits behind another before it is owed one.
BATCHES: Final = 3
#: How many times as far behind nobody passes it any more, where partitions overlap.
OVERDUE: Final = 2
#: Counters are sums of floats: who is behind by all but so small a part of it is owed a batch, too.
_ROUNDING: Final = 1e-9
#: Planned at least, where a slot says nothing: rows per second.
_LEAST_RPS: Final = 0.1


def planned_rows_per_s(slot: Slot) -> float:
    """The weight of a turn, in rows per second."""
    return max(slot.rows_per_s, _LEAST_RPS)


def starved(slot: Slot, lost_rows: int) -> bool:
    """True if so many rows were lost since a batch began that the model goes before the rest."""
    return lost_rows >= BATCHES * slot.batch


def famished(slot: Slot, lost_rows: int) -> bool:
    """True if so many were that nobody passes it any more, where partitions overlap."""
    return lost_rows >= OVERDUE * BATCHES * slot.batch


def owed_ms(slot: Slot) -> float:
    """How far behind another a model is owed a batch, in ms of its planned arrivals."""
    batches = BATCHES * (1.0 - _ROUNDING)
    return batches * slot.batch / planned_rows_per_s(slot) * 1000.0


def overdue_ms(slot: Slot) -> float:
    """How far behind nobody passes it any more, in ms of its planned arrivals."""
    return OVERDUE * owed_ms(slot)


def due(
    slot: Slot, model: ModelView, head: Request, partition: PartitionView, now_ms: float
) -> bool:
    """True if the head may take longer than its model's SLO, and a batch of the model is due."""
    slo_ms = model.demand.slo_ms
    if head.part is not None or head.deadline_ms - head.arrived_ms <= slo_ms * (1.0 + _ROUNDING):
        return False  # an app's stages have deadlines of their own
    every_ms = min(slo_ms, slot.batch / planned_rows_per_s(slot) * 1000.0)
    return now_ms >= max(head.arrived_ms, partition.last_start_ms(head.model)) + every_ms
