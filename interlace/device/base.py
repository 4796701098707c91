"""The one contract of every device."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, Protocol

from interlace.core.errors import ServeError
from interlace.core.hardware import Gpu
from interlace.core.messages import (
    BatchWaits,
    CancelRun,
    PartitionLost,
    TierChanged,
    Work,
    WorkFinished,
)
from interlace.core.model import Model
from interlace.core.request import BlsCall, PartialResponse, Reply, Request

Done = Callable[[WorkFinished], None]
#: What a device tells unasked.
DeviceEvent = PartitionLost | BatchWaits | TierChanged | PartialResponse
#: How the reason ends why code that calls other models is not measured.
LEARNED: Final = "its latency is learned from requests"


class Registers(Protocol):
    """What knows models by deployment key: a device, or several."""

    def register(self, model: Model) -> None:
        """Make a deployment key known, before any ``Load`` of it."""

    def forget(self, key: str) -> None:
        """Drop what ``register`` kept; the model is loaded nowhere."""


class Callees(Protocol):
    """The served models, as the code of models calls them."""

    def call(
        self,
        call: BlsCall,
        answer: Callable[[Reply | ServeError | None], None],
        respond: Callable[[PartialResponse], None] | None = None,
    ) -> Request | None:
        """Submit a call; ``answer`` is called exactly once, perhaps at once; ``None`` is done.

        The inputs stay in place until then. ``delivered`` follows for a reply, once its outputs
        are no longer read. ``respond`` is called before with each response of a decoupled model,
        which is refused without. Returns the request, for ``cancel``.
        """

    def cancel(self, request: Request) -> None:
        """Nobody waits for the answer any more; it still comes."""

    def delivered(self, reply: Reply) -> None:
        """The outputs of a reply are no longer read."""


class Device(Registers, Protocol):
    """An accelerator that carries out work.

    ``do`` returns at once, calls ``done`` exactly once for that piece of work, later (never inside
    ``do``) and on the runtime's thread, and never raises: a failure is a ``WorkFinished`` with
    ``failure``. Work of one partition starts in the order given, and its batches end in that order.
    A batch that waits (``BatchWaits``) ends later. Where ``gpu.ahead_ms`` is not 0, a batch begins
    by itself when the one before it ends. When a partition dies, each piece of work it held is
    finished with a fatal failure, then ``on_event`` hears of it once; partitions that share a
    process die together. What is held of a model's weights is forgotten when none of its partitions
    has the model loaded any more.
    """

    @property
    def gpu(self) -> Gpu: ...
    def do(self, work: Work, done: Done) -> None: ...
    def free(self, batch: int) -> None:
        """The replies of that batch are delivered: its output bytes may be reused."""

    def cancel_run(self, work: CancelRun) -> None:
        """The client of a request which runs went away: tell the model's code, if it can hear."""

    def cancel_fetch(self, model: str) -> None:
        """Nobody waits for the model's fetch any more; it ends early, with a failure, or well."""

    def on_event(self, heard: Callable[[DeviceEvent], None]) -> None: ...
    def close(self) -> None:
        """Stop everything; what is unfinished finishes with a failure."""
