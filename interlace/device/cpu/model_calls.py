"""Calls of other models by the code that runs in this worker, and the threads that wait for them.

One thread at a time runs models. The batch that it runs holds ``turn``, and gives it up while its
code waits for calls. Meanwhile another thread carries out frames, perhaps the very call that it
waits for. So a caller never keeps its callee from running.
"""

from __future__ import annotations

import weakref
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from itertools import count
from threading import Lock, Semaphore, Thread, get_ident
from typing import Final

import numpy as np

from interlace.core.errors import Reason, ServeError
from interlace.core.tensor import BYTES, Span, Tensor
from interlace.device.cpu.execution import output_bytes, unpack_strings
from interlace.device.process.output_arena import OutputBlocks
from interlace.device.process.wire import CallAnswered, CallModel, CallsLeft, Waits
from interlace.formats.arrays import NUMPY_TYPES
from interlace.formats.runner import LentArray, LentResponse, OutgoingCall, TypedArray
from interlace.shm.arena import ArenaMap

_GONE: Final = ServeError(Reason.CANCELLED, "the server ended")
_OUTSIDE: Final = ServeError(
    Reason.UNSUPPORTED, "other models can be called only while execute runs"
)


class Leadership:
    """One of a worker's threads reads its frames; the others wait to, or for calls."""

    def __init__(self, lead: Callable[[], None]) -> None:
        """``lead`` reads until the thread does not lead any more, or all is over."""
        self.over = False
        self.failure: BaseException | None = None
        self._lead = lead
        self._leader = get_ident()
        self._main = Semaphore(0)
        self._spare: list[Semaphore] = []
        self._changing = Lock()

    @property
    def leads(self) -> bool:
        """Whether this thread does."""
        return self._leader == get_ident()

    def run(self) -> None:
        """Lead in this thread, the first, and again whenever it is asked to, until all is over.

        Raises:
            BaseException: what ended another thread.
        """
        self._run(self._main)
        if self.failure is not None:
            raise self.failure

    def leave(self, thread: int) -> None:
        """If that thread leads, another does from now on."""
        with self._changing:
            if self._leader != thread:
                return
            self._leader = 0
            if self._spare:
                self._spare.pop().release()
            else:
                Thread(target=self._run, args=(Semaphore(0),), daemon=True).start()

    def end(self) -> None:
        """Nothing more is read: the first thread returns."""
        self.over = True
        self._main.release()

    def _run(self, asked: Semaphore) -> None:
        try:
            while not self.over:
                self._leader = get_ident()
                self._lead()
                if self.over:
                    return
                with self._changing:
                    self._spare.append(asked)
                asked.acquire()
        except BaseException as error:
            self.failure = self.failure or error
            self.end()


class _Lent:
    """One output of a call."""

    def __init__(self, calls: BatchCalls, arenas: ArenaMap, tensor: Tensor) -> None:
        self.tensor = tensor
        self._calls = calls
        self._arenas = arenas

    def read(self) -> TypedArray:
        name, datatype, shape, span = self.tensor
        if self._calls.over:
            raise ValueError(f"'{name}' of a called model is read after execute returned")
        view = self._arenas.view(span)
        if datatype == BYTES:
            return TypedArray(datatype, unpack_strings([view], shape, name))
        array = np.ndarray(shape, NUMPY_TYPES[datatype], view)
        array.flags.writeable = False
        return TypedArray(datatype, array)


class _Response(Future[LentResponse]):
    """A response that comes. Its batch has given up its turn for it if it is ``waited`` for."""

    def __init__(self, calls: BatchCalls, call: int, waited: bool) -> None:
        super().__init__()
        self.set_running_or_notify_cancel()  # who stops waiting for it cannot cancel it
        self.waited = waited
        self.came = False
        self._calls = calls
        self._call = call

    def result(self, timeout: float | None = None) -> LentResponse:
        self._calls.wait(self)
        return super().result(timeout)

    def cancel(self) -> bool:
        """Want no further responses; some may come."""
        self._calls.leave(self._call)
        return False


class BatchCalls:
    """The calls of one batch."""

    def __init__(self, owner: WorkerCalls, batch: int) -> None:
        self.batch = batch
        self.thread = get_ident()
        self.open = 0
        self.over = False
        self.changing = Lock()
        self._owner = owner

    def begin(self, asked: OutgoingCall) -> Future[LentResponse]:
        """Send a call; any thread of the model may. The batch waits, unless the call streams.

        Raises:
            ServeError: the batch has ended.
            MemoryError: no room for its inputs.
            ValueError: they do not fit a frame.
        """
        with self.changing:
            if self.over:
                raise _OUTSIDE
            if not asked.streams:
                self._owner.leadership.leave(self.thread)
            if self.open:
                self._owner.turn.acquire()
            try:
                future = self._owner.send(self, asked)
            except BaseException:
                if self.open:
                    self._owner.turn.release()
                raise
            self.open += not asked.streams
            if self.open:
                self._owner.turn.release()
        return future

    def wait(self, response: _Response) -> None:
        """Give up the turn until that response comes.

        Raises:
            ServeError: the batch has ended.
        """
        with self.changing:
            if response.came or response.waited:
                return
            if self.over:
                raise _OUTSIDE
            response.waited = True
            self._give_up_turn()

    @contextmanager
    def turn_given_up(self) -> Iterator[None]:
        """Let others run meanwhile; a batch that has ended has no turn to give."""
        with self.changing:
            over = self.over
            if not over:
                self._give_up_turn()
        yield
        if not over:
            self._take_turn()

    def _give_up_turn(self) -> None:
        self._owner.leave(Waits(self.batch))
        self._owner.leadership.leave(self.thread)
        self.open += 1
        if self.open == 1:
            self._owner.turn.release()

    def _take_turn(self) -> None:
        with self.changing:
            self.open -= 1
            if not (self.open or self.over):
                self._owner.wanted += 1
                self._owner.turn.acquire()
                self._owner.wanted -= 1

    @property
    def wanted(self) -> bool:
        """Whether another batch could go on with the turn of this one."""
        return self._owner.wanted > 0

    @property
    def beside(self) -> bool:
        """Whether another batch waits for a response, perhaps to the request of this one."""
        return self._owner.waits_beside(self)

    def leave(self, call: int) -> None:
        """Nobody waits for responses to a call any more."""
        self._owner.leave(CallsLeft((), call))

    def came(self, response: _Response) -> None:
        """With the last response that it waits for, the batch has its turn again."""
        with self.changing:
            response.came, waited = True, response.waited
        if waited:
            self._take_turn()

    def end(self) -> None:
        """Its code has returned: it has its turn, whatever it still waits for."""
        with self.changing:
            self.over = True
            if self.open:
                self._owner.turn.acquire()


class WorkerCalls:
    """All calls of a worker."""

    def __init__(
        self,
        blocks: OutputBlocks,
        arenas: ArenaMap,
        send: Callable[[CallModel | CallsLeft | Waits], None],
        leadership: Leadership,
    ) -> None:
        self.turn = Lock()
        self.wanted = 0  #: batches that wait to have it again
        self.next = 0  #: threads that wait to begin something with it
        self.leadership = leadership
        self._blocks = blocks
        self._arenas = arenas
        self._send = send
        #: Its batch, the next response if there is one, and inputs that are outputs of others.
        self._open: dict[int, tuple[BatchCalls, _Response | None, list[LentArray]]] = {}
        self._released: deque[int] = deque()

    @contextmanager
    def next_turn(self) -> Iterator[None]:
        """Have the turn, to begin something."""
        self.next += 1
        with self.turn:
            self.next -= 1
            yield

    def send(self, calls: BatchCalls, asked: OutgoingCall) -> _Response:
        """Write a call's inputs and send it; the caller has the turn."""
        number, taken = self._blocks.number(), list[int]()
        self._blocks.hold(number, taken)  # the inbox frees them with the answer
        kept = [one for one in asked.inputs.values() if not isinstance(one, TypedArray)]
        future = _Response(calls, number, not asked.streams)
        released = self._taken()
        try:
            inputs = tuple(
                self._written(name, value, taken)
                if isinstance(value, TypedArray)
                else value.tensor._replace(name=name)
                for name, value in asked.inputs.items()
            )
            self._open[number] = calls, future, kept
            frame = CallModel(
                number,
                calls.batch,
                asked.model,
                asked.version,
                inputs,
                asked.outputs,
                asked.context,
                asked.timeout_us,
                released,
                asked.streams,
                asked.control,
            )
            self._send(frame)
        except BaseException:
            self._open.pop(number, None)
            self._released.extend(released)
            self._blocks.free((number,))
            raise
        return future

    def waits_beside(self, calls: BatchCalls) -> bool:
        """Whether a batch other than that of these calls waits for a response."""
        opened = tuple(self._open.values())
        return any(one is not calls and next and next.waited for one, next, _ in opened)

    def answered(self, frame: CallAnswered) -> None:
        """Let the caller go on. Called by the thread that leads, without the turn."""
        calls, future, kept = self._open.pop(frame.call)
        follows = None if frame.final else _Response(calls, frame.call, waited=False)
        if not frame.ended:
            self._open[frame.call] = calls, follows, kept
        result, number = frame.result, frame.number or frame.call
        lent = [_Lent(calls, self._arenas, tensor) for tensor in result.outputs]
        if frame.number or frame.ended:
            self._keep(number, lent)
        if future is None:  # the last response came before
            return
        calls.came(future)
        if result.reason:
            future.set_exception(ServeError(Reason(result.reason), result.detail))
            return
        outputs: dict[str, LentArray] = {one.tensor.name: one for one in lent}
        future.set_result(LentResponse(outputs, result.parameters, follows))

    def leave(self, frame: CallsLeft | Waits) -> None:
        """Send a frame, and before it what is released."""
        if released := self._taken():
            self._send(CallsLeft(released))
        self._send(frame)

    def abandon(self) -> None:
        """Fail what is waited for: nobody answers any more."""
        for calls, future, _ in list(self._open.values()):
            if future is not None:
                calls.came(future)
                future.set_exception(_GONE)
        self._open.clear()

    def _taken(self) -> tuple[int, ...]:
        """What is released and not sent yet."""
        return tuple([self._released.popleft() for _ in range(len(self._released))])

    def _keep(self, number: int, lent: list[_Lent]) -> None:
        """Note that the outputs are released once the last of them is forgotten."""
        if not lent:
            self._released.append(number)
        counted, total = count(1), len(lent)  # not the outputs: this outlives them

        def forgotten() -> None:
            if next(counted) == total:
                self._released.append(number)

        for one in lent:
            weakref.finalize(one, forgotten).atexit = False

    def _written(self, name: str, value: TypedArray, taken: list[int]) -> Tensor:
        data = output_bytes(value)
        offset = self._blocks.take(max(1, len(data)))
        taken.append(offset)
        arena = self._blocks.arena
        arena.memory[offset : offset + len(data)] = data
        span = Span(arena.number, offset, len(data))
        return Tensor(name, value.datatype, value.array.shape, span)
