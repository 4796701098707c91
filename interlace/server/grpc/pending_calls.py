"""Calls in flight: sent to the main process, answered once, their memory given back once."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from itertools import count
from typing import Final, Protocol

import msgspec

from interlace.core.errors import Reason, ServeError
from interlace.core.tensor import Span
from interlace.proto.messages import ModelInferResponse
from interlace.server.cache import GenerationalCache
from interlace.server.door.frames import (
    AnswerFrame,
    AskFrame,
    CancelFrame,
    DeliveredFrame,
    GivenUpFrame,
    InferFrame,
    RefusalFrame,
    ToldFrame,
    ToMain,
    pieces,
)
from interlace.server.grpc.frame_writer import Buffer, OnSent
from interlace.server.grpc.infer_decoder import DecodedInfer, InferDecoder
from interlace.server.grpc.infer_head import SharedMemoryRange
from interlace.server.shared_memory import Regions
from interlace.shm.arena import ArenaMap

_HEADS: Final = 1024
#: Name, datatype and shape of each output.
OutputHeads = tuple[tuple[str, str, tuple[int, ...]], ...]
#: Of an output that lies in client shared memory: its position, region, offset and size.
StoredOutputs = tuple[tuple[int, str, int, int], ...]


class CallOwner(Protocol):
    """Who waits for the answer of a flight."""

    def answered(self, flight: PendingCall, result: InferResult, sent: OnSent) -> None:
        """The outputs; ``sent`` must be called once, when their bytes are no longer needed."""
        ...

    def refused(self, flight: PendingCall, error: ServeError) -> None:
        """There is no result."""
        ...


class InferResult:
    """The head of a response message, and the bytes of its outputs."""

    __slots__ = ("head", "views")

    def __init__(self, head: bytes, views: list[Buffer]) -> None:
        self.head = head
        self.views = views


class PendingCall:
    """One call that the main process has. ``owner`` is ``None`` once nobody waits."""

    __slots__ = ("number", "owner", "taken")

    def __init__(self, number: int, owner: CallOwner, taken: DecodedInfer) -> None:
        self.number = number
        self.owner: CallOwner | None = owner
        self.taken = taken


class PendingCalls:
    """Everything that waits for the main process."""

    def __init__(
        self,
        tell: Callable[[ToMain], None],
        intake: InferDecoder,
        arenas: ArenaMap,
        regions: Regions,
        max_in_flight: int,
    ) -> None:
        self._tell = tell
        self._decoder = intake
        self._arenas = arenas
        self._regions = regions
        self._max_in_flight = max_in_flight
        self._flights: dict[int, PendingCall] = {}
        self._asked: dict[int, tuple[Callable[[object], None], Callable[[ServeError], None]]] = {}
        self._told: dict[int, bytearray] = {}
        self._numbers = count(1)
        self._delivered: list[int] = []
        self._heads: GenerationalCache[tuple[str, str, OutputHeads, StoredOutputs], bytes] = (
            GenerationalCache(_HEADS)
        )

    @property
    def idle(self) -> bool:
        return not self._flights and not self._asked

    @property
    def unreported(self) -> bool:
        """Whether outputs have left that the main process does not know of."""
        return bool(self._delivered)

    # ------------------------------------------------------------------------------- inference

    def submit(self, owner: CallOwner, taken: DecodedInfer, budget_ms: float | None) -> PendingCall:
        """Send a request on; its slots belong to the flight from now on.

        Raises:
            ServeError: OVERLOADED (the slots are free again).
        """
        if len(self._flights) >= self._max_in_flight:
            self._decoder.free(taken.slots)
            raise ServeError(
                Reason.OVERLOADED,
                f"Exceeds maximum queue size: {len(self._flights)} gRPC calls are in flight",
                retry_after_ms=100.0,
            )
        number = next(self._numbers)
        flight = self._flights[number] = PendingCall(number, owner, taken)
        form = self._decoder.forms.current(taken.form)
        self._tell(InferFrame(number, form.number, taken.id, budget_ms, taken.spans))
        return flight

    def cancel(self, flight: PendingCall) -> None:
        """Nobody waits for it any more; its memory comes back with its answer."""
        if flight.owner is not None and flight.number in self._flights:
            flight.owner = None
            self._tell(CancelFrame(flight.number))

    def answer(self, frame: AnswerFrame) -> None:
        """The main process has outputs."""
        flight = self._flights.pop(frame.call)
        sent = partial(self._release, flight)
        owner, flight.owner = flight.owner, None  # they know each other: a cycle for the collector
        if owner is None:
            sent()
            return
        try:
            result = self._result(flight, frame)
        except (ServeError, ValueError) as error:
            sent()
            if not isinstance(error, ServeError):
                error = ServeError(Reason.BACKEND, f"the outputs are gone: {error}")
            owner.refused(flight, error)
            return
        owner.answered(flight, result, sent)

    def refuse(self, frame: RefusalFrame) -> None:
        """The main process has no outputs, and why."""
        error = ServeError(Reason(frame.reason), frame.text, retry_after_ms=frame.retry_after_ms)
        flight = self._flights.pop(frame.call, None)
        if flight is None:
            self._told.pop(frame.call, None)
            self._asked.pop(frame.call)[1](error)
            return
        self._decoder.free(flight.taken.slots)
        owner, flight.owner = flight.owner, None
        if owner is not None:
            owner.refused(flight, error)

    def give_up(self, frame: GivenUpFrame) -> None:
        """The main process will have no outputs, but the call still runs on its inputs."""
        flight = self._flights[frame.call]
        owner, flight.owner = flight.owner, None
        if owner is not None:
            owner.refused(flight, ServeError(Reason(frame.reason), frame.text))

    def report(self) -> None:
        """Tell the main process which outputs have left since the last report."""
        if self._delivered:
            self._tell(DeliveredFrame(self._delivered))
            self._delivered = []

    def _release(self, flight: PendingCall) -> None:
        self._decoder.free(flight.taken.slots)
        self._delivered.append(flight.number)

    def _result(self, flight: PendingCall, frame: AnswerFrame) -> InferResult:
        spans, view = frame.spans, self._arenas.view
        views: list[Buffer] = [
            view(Span(spans[i], spans[i + 1], spans[i + 2])) for i in range(0, len(spans), 3)
        ]
        for position, data in frame.inline.items():
            views[position] = data
        targets = flight.taken.form.head.targets
        stored = self._store(targets, frame.outputs, views) if targets else ()
        key = (frame.model, frame.version, frame.outputs, stored)
        head = self._heads.get(key)
        if head is None:
            head = self._heads.get(key) or _head(*key)
            self._heads.put(key, head)
        return InferResult(head, views)

    def _store(
        self, targets: dict[str, SharedMemoryRange], outputs: OutputHeads, views: list[Buffer]
    ) -> StoredOutputs:
        """Write outputs to client shared memory; where each went."""
        stored = []
        for position, (name, _, _) in enumerate(outputs):
            place = targets.get(name)
            if place is None:
                continue
            nbytes = len(views[position])
            if nbytes > place.nbytes:
                raise ServeError(
                    Reason.BAD_INPUT,
                    f"shared memory size specified with the request for output '{name}' "
                    f"({place.nbytes} bytes) should be at least {nbytes} bytes to hold the results",
                )
            self._regions.write(place.region, place.offset, views[position])
            views[position] = b""
            stored.append((position, place.region, place.offset, nbytes))
        return tuple(stored)

    # -------------------------------------------------------------------------- administration

    def ask(
        self,
        method: str,
        body: dict[str, object],
        told: Callable[[object], None],
        refused: Callable[[ServeError], None],
    ) -> int:
        """Ask the main process something; exactly one of the two is called, later."""
        number = next(self._numbers)
        self._asked[number] = (told, refused)
        for piece, last in pieces(msgspec.msgpack.encode(body)):
            self._tell(AskFrame(number, method, piece, last))
        return number

    def told(self, frame: ToldFrame) -> None:
        """A piece of what was asked for."""
        held = self._told.pop(frame.call, None)
        data = held + frame.piece if held else frame.piece
        if frame.last:
            self._asked.pop(frame.call)[0](msgspec.msgpack.decode(data))
        else:
            self._told[frame.call] = bytearray(data)


def _head(model: str, version: str, outputs: OutputHeads, stored: StoredOutputs) -> bytes:
    message = ModelInferResponse(model_name=model, model_version=version)
    for name, datatype, shape in outputs:
        message.outputs.add(name=name, datatype=datatype, shape=shape)
    for position, region, offset, nbytes in stored:
        parameters = message.outputs[position].parameters
        parameters["shared_memory_region"].string_param = region
        parameters["shared_memory_byte_size"].int64_param = nbytes
        if offset:
            parameters["shared_memory_offset"].int64_param = offset
    data: bytes = message.SerializeToString()
    return data
