"""Responses that a model sends before its batch has ended."""

from __future__ import annotations

from collections.abc import Callable
from threading import Lock
from typing import Final

from interlace.core.errors import Reason, ServeError
from interlace.device.cpu.inbox import Inbox
from interlace.device.cpu.output_placing import Answer, place
from interlace.device.process.memory import OutputTooLargeError
from interlace.device.process.wire import Responded

#: Responses to one request that may wait for its client to read them.
_WINDOW: Final = 32


class ResponseStreams:
    """The responses to the requests of one batch, by request id.

    A client that reads slowly holds up its model, for as long as a batch waits for memory; then its
    stream fails. Any thread of the model may respond.
    """

    def __init__(self, batch: int, inbox: Inbox, send: Callable[[Responded], None]) -> None:
        self.failed: dict[int, ServeError] = {}
        self.cancelled = inbox.cancelled
        self._batch = batch
        self._inbox = inbox
        self._send = send
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
                (result,), block = place([{} if answer is None else answer], blocks)
            except (MemoryError, OutputTooLargeError) as error:
                self.failed[request] = ServeError(Reason.BACKEND, str(error))
                inbox.cancel(request)
                return
            number = blocks.number()
            blocks.hold(number, [] if block is None else [block])
            unread.append(number)
            self._send(Responded(self._batch, request, number, result, final))

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
            if not self._inbox.wait_for_memory(frees):
                raise MemoryError(
                    f"the stream ends: its client has {len(unread)} responses and reads none"
                )
