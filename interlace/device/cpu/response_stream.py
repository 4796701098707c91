"""Responses that a model sends before its batch has ended."""

from __future__ import annotations

from collections.abc import Callable
from threading import Lock
from time import sleep
from typing import Final

from interlace.core.errors import Reason, ServeError
from interlace.device.cpu.inbox import Inbox
from interlace.device.cpu.model_calls import BatchCalls
from interlace.device.cpu.output_placing import place
from interlace.device.process.memory import OutputTooLargeError
from interlace.device.process.wire import Responded
from interlace.formats.runner import Answer, ModelResponse

#: Responses to one request that may wait for its client to read them.
_WINDOW: Final = 32
#: How long a model lets others run, between its responses, that wait for one.
_TURN_S: Final = 0.001


class ResponseStreams:
    """The responses to the requests of one batch, by request id.

    A client that reads slowly holds up its model, for as long as a batch waits for memory; then its
    stream fails. Meanwhile others run: the client may be a model in this worker. Any thread of the
    model may respond.
    """

    def __init__(
        self, batch: int, inbox: Inbox, send: Callable[[Responded], None], calls: BatchCalls
    ) -> None:
        self.failed: dict[int, ServeError] = {}
        self.cancelled = inbox.cancelled
        self._batch = batch
        self._inbox = inbox
        self._send = send
        self._calls = calls
        self._unread: dict[int, list[int]] = {}
        self._sending = Lock()

    def respond(self, request: int, answer: Answer | None, final: bool) -> None:
        """Send a response, ``None`` for one without outputs; wait if too many are not read yet.

        Raises:
            ConnectionError: the main process closed its end.
        """
        inbox, blocks = self._inbox, self._inbox.blocks
        with self._sending:
            if request in self.failed or self.cancelled(request):
                return
            try:
                unread = self._make_room(request)
                (result,), block = place(
                    [ModelResponse() if answer is None else answer], blocks, self._take
                )
            except (MemoryError, OutputTooLargeError) as error:
                self.failed[request] = ServeError(Reason.BACKEND, str(error))
                inbox.cancel(request)
                return
            number = blocks.number()
            blocks.hold(number, [] if block is None else [block])
            unread.append(number)
            self._send(Responded(self._batch, request, number, result, final))
            if self._calls.wanted or self._inbox.holds_answers:
                with self._calls.turn_given_up():
                    sleep(_TURN_S)

    def _wait(self, frees: int) -> bool:
        with self._calls.turn_given_up():
            return self._inbox.wait_for_memory(frees)

    def _take(self, nbytes: int) -> int:
        """As ``OutputBlocks.take``."""
        blocks = self._inbox.blocks
        frees = blocks.frees
        while (offset := blocks.take_now(nbytes)) is None:
            if not self._wait(frees):
                raise MemoryError(blocks.shortage(nbytes))
            frees = blocks.frees
        return offset

    def _make_room(self, request: int) -> list[int]:
        """The responses to a request that are not read yet, fewer than may be.

        Raises:
            MemoryError: its client reads none.
        """
        blocks = self._inbox.blocks
        while True:
            frees = blocks.frees
            unread = [one for one in self._unread.get(request, ()) if blocks.holds(one)]
            self._unread[request] = unread
            if len(unread) < _WINDOW:
                return unread
            if not self._wait(frees):
                raise MemoryError(
                    f"the stream ends: its client has {len(unread)} responses and reads none"
                )
