"""What policies see of one accelerator at one instant.

``View`` leads to four kinds of facts: the plan that is in force, each model, each queue and each
partition. All of it is live and read-only, and must not be kept after the call.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Collection, Hashable, Iterable, Mapping, Sequence

from interlace.core.hardware import Gpu
from interlace.core.plan import Demand, Plan, Slot
from interlace.core.request import Batch, Request
from interlace.policy.decision import Tally


class PartitionView:
    """One partition."""

    __slots__ = ()

    id: str
    share_pct: int
    room: int  #: what it takes of ``Gpu.room``
    units_mask: int  #: bit i for unit i of its accelerator; 0 if it has no units of its own
    slots: Sequence[Slot]  #: turns of the duty cycle whose model is loaded here, in plan order
    own_turns: int  #: models that have a turn here, guests left out
    #: Where partitions exceed their accelerator: all that are there; else only this one.
    rivals: Sequence[PartitionView]
    #: Where partitions exceed their accelerator: (slack_ms, room), by slack. A batch that runs for
    #: longer should leave this part of ``Gpu.room`` to a model that cannot wait for its end.
    tight: Sequence[tuple[float, int]]
    kept_room: int  #: what ``tight`` asks of the shortest batch here, when the plan last changed
    #: The part of the accelerator's room that a batch here takes from its rivals; 1 if none.
    room_part: float
    #: The part of each model's rate that is planned here, of all that is planned for it.
    parts: dict[str, float]
    #: What arrives of each model's part in the shortest round of batches that keeps up.
    sustaining_rows: dict[str, float]

    @property
    @abstractmethod
    def accepting(self) -> bool: ...  #: ready, and not draining
    @abstractmethod
    def takes(self, now_ms: float) -> bool:
        """Accepting, and idle or about to be: a batch may be given to it (``Gpu.ahead_ms``)."""

    @property
    @abstractmethod
    def running(self) -> Batch | None: ...  #: the batch that runs now

    @property
    @abstractmethod
    def lags_ms(self) -> Mapping[str, float]:
        """How far the models that contend are behind the most served of them (``fairness``)."""

    @abstractmethod
    def last_start_ms(self, model: str) -> float:
        """When the model's last batch here began; minus infinity if none did."""

    @property
    @abstractmethod
    def free_at_ms(self) -> float:
        """When all that was given to it is predicted to end; a past time if nothing runs."""


class QueueView:
    """One model's queue, earliest deadline first.

    Requests of one model are always taken in this order: a dispatcher decides which model runs,
    where, and in how large a batch, but not which of a model's requests go first.
    """

    __slots__ = ()

    @property
    @abstractmethod
    def rows(self) -> int: ...
    @property
    @abstractmethod
    def head(self) -> Request | None: ...
    @property
    @abstractmethod
    def tail_deadline_ms(self) -> float:
        """The latest deadline queued; infinite if the queue is empty."""

    @property
    @abstractmethod
    def complete(self) -> bool:
        """True if what arrives later cannot join these rows: a ring of staged inputs ends here."""

    @abstractmethod
    def deadline_ms(self, index: int) -> float:
        """The deadline of the request at that place, 0 for the head; infinite past the end."""

    @abstractmethod
    def rows_before(self, request: Request) -> int:
        """Rows queued that are to be served before ``request``."""

    @abstractmethod
    def batch_rows(self, limit: int) -> int:
        """Rows the next batch would hold: the head and what may join it, up to ``limit``."""


class ModelView:
    """One deployed model."""

    __slots__ = ()

    demand: Demand
    hosts: tuple[PartitionView, ...]  #: accepting, on any accelerator, with the model loaded
    lenders: tuple[PartitionView, ...]  #: such partitions where it is a guest
    alike: bool  #: its hosts are of one share, and none has another model's turns
    lost_rows: int  #: refused, dropped or late since a batch of it last began
    ready_ms: float  #: when its weights are predicted to be there; a past time if they are

    @property
    @abstractmethod
    def admission_margin_ms(self) -> float:
        """How long before its deadline a request should be predicted to end, to be admitted."""

    @abstractmethod
    def latency_ms(self, rows: int, share_pct: int, shape: Hashable = None) -> float:
        """Predicted command-to-completion time, corrected by what was measured lately.

        ``shape`` is the batch's shape key, where known: corrections are kept for each.
        """


class History:
    """What has run on one accelerator."""

    __slots__ = ()

    @abstractmethod
    def tally(self, model: str) -> Tally: ...
    @abstractmethod
    def runs_since(self, model: str, since_ms: float) -> int:
        """Batches of the model that began at or after ``since_ms``, of the last 256."""


class View:
    """One accelerator at one instant."""

    __slots__ = ()

    gpu: Gpu
    history: History

    @property
    @abstractmethod
    def plan(self) -> Plan:
        """The plan that is in force, with its ``session_ms`` and ``elastic``."""

    @property
    @abstractmethod
    def partitions(self) -> Sequence[PartitionView]: ...
    @property
    @abstractmethod
    def running(self) -> Collection[PartitionView]: ...  #: those where a batch runs now
    @abstractmethod
    def model(self, model: str) -> ModelView: ...
    @abstractmethod
    def serves(self, model: str) -> bool:
        """Whether the model is deployed and has partitions."""

    @abstractmethod
    def rows_per_s(self, model: str) -> float:
        """Rows per second that arrive, smoothed; the planned rate before any has arrived."""

    @abstractmethod
    def queue(self, model: str) -> QueueView:
        """What can be launched: all that waits, or a row of staged inputs (E2bird section 5.1)."""

    @abstractmethod
    def queued(self, partition: PartitionView) -> Sequence[Slot]:
        """Slots of a partition whose model may have something to launch: of many, few."""

    @abstractmethod
    def coming(self, partition: PartitionView) -> Sequence[tuple[Slot, QueueView]]:
        """Slots of a partition for whose model stages of accepted requests of apps follow."""

    @abstractmethod
    def waiting_lanes(self) -> Iterable[tuple[str, Sequence[tuple[PartitionView, Slot]]]]:
        """Models with something to launch, each with the partitions that host it and its slots."""

    @abstractmethod
    def slot(self, partition: PartitionView, model: str) -> Slot:
        """The slot of a model that the partition hosts or is lent to; of several the last."""

    @abstractmethod
    def waiting_rows(self, model: str) -> int:
        """Rows that wait here, whether or not they can be launched at this instant."""


def available_partitions(view: View, now_ms: float) -> Sequence[PartitionView]:
    """Partitions of an accelerator that take a batch now: the idle, then those about to be."""
    found = [partition for partition in view.partitions if partition.takes(now_ms)]
    if len(found) < 2:
        return found
    return sorted(found, key=lambda partition: partition.running is not None)


def start_ms(partition: PartitionView, now_ms: float) -> float:
    """When a batch that is given to a partition now would begin."""
    return max(now_ms, partition.free_at_ms)


def kept_room(tight: Sequence[tuple[float, int]], run_ms: float) -> int:
    """The room that a batch of ``run_ms`` leaves to models that cannot wait for its end.

    See ``PartitionView.tight``.
    """
    kept = 0
    for slack_ms, room in tight:
        if slack_ms >= run_ms:
            break
        kept = room
    return kept
