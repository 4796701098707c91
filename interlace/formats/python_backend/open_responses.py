"""The requests of one call of ``execute`` that still have responses to come."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from threading import Condition
from typing import Any, Final, Protocol

from interlace.core.errors import Reason, ServeError
from interlace.formats.runner import Answer

TRITONSERVER_RESPONSE_COMPLETE_FINAL: Final = 1
#: How often a model that responds from threads is looked after: a caller in the same worker may
#: have its response meanwhile, and need the turn.
_LOOK_S: Final = 0.01
_DROPPED: Final = ServeError(
    Reason.BACKEND,
    "the model let go of a response sender without TRITONSERVER_RESPONSE_COMPLETE_FINAL",
)


class Send(Protocol):
    """Takes a response, or ``None``, and whether it is the last one."""

    def __call__(self, response: Any, final: bool) -> None: ...


class ResponseState:
    """What a request and its senders share; with the last of them the request ends."""

    def __init__(
        self,
        send: Send,
        decoupled: bool,
        dropped: Callable[[], None] = lambda: None,
        open: Callable[[], bool] = lambda: True,
    ) -> None:
        """``dropped`` is called when nobody can respond any more; ``open`` says if any may."""
        self.send = send
        self.decoupled = decoupled
        self.open = open
        self._dropped = dropped
        self.used = self.closed = False
        self.sent = 0

    def __del__(self) -> None:
        self._dropped()

    def wrong(self, response: object, flags: int) -> str:
        """Why a response cannot be sent, in Triton's words; empty if it can."""
        if self.closed:
            return "Unable to send response. Response sender has been closed."
        if flags not in (0, TRITONSERVER_RESPONSE_COMPLETE_FINAL):
            return f"Unable to send response. Unsupported flag {flags}."
        if response is None and not flags:
            return (
                "Inference Response object must be provided when the response flags is set to zero."
            )
        if self.decoupled:
            return ""
        if response is not None and self.sent:
            return (
                "Unable to send response. Non-decoupled model cannot send more than one response."
            )
        if response is None and not self.sent:
            return (
                "Unable to send response. Non-decoupled model cannot send complete final before "
                "sending a response."
            )
        return ""


class OpenResponses:
    """Any thread of the model ends requests; the thread that called ``execute`` waits for them."""

    def __init__(self, count: int) -> None:
        self.answers: list[Answer] = [_DROPPED] * count
        self.kept: list[Any] = []  #: responses whose outputs are answers
        self._open = set(range(count))
        self._changed = Condition()

    def state(self, index: int, send: Send, decoupled: bool) -> ResponseState:
        """The state of a request, which ends when nobody can respond to it any more."""
        dropped, open = partial(self.end, index, _DROPPED), partial(self.open, index)
        return ResponseState(send, decoupled, dropped, open)

    @property
    def over(self) -> bool:
        """Whether all requests have ended."""
        return not self._open

    def open(self, index: int) -> bool:
        """Whether a request has not ended."""
        return index in self._open

    def end(self, index: int, answer: Answer) -> None:
        """End a request; only the first end counts."""
        if index not in self._open:
            return
        with self._changed:
            if index in self._open:
                self._open.discard(index)
                self.answers[index] = answer
                self._changed.notify_all()

    def end_all(self, answer: Answer) -> None:
        """End every request that is open."""
        for index in range(len(self.answers)):
            self.end(index, answer)

    def wait(self, look: Callable[[], object]) -> list[Answer]:
        """The answers, once all requests have ended; ``look`` is called now and then."""
        while self._open:
            with self._changed:
                if not self._open or (self._changed.wait(_LOOK_S) and not self._open):
                    break
            look()
        return self.answers
