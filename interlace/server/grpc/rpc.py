"""What a method and its messages look like to the stream that carries them."""

from __future__ import annotations

from typing import Protocol


class MessageSink(Protocol):
    """Where a message goes whose bytes come in more than one piece."""

    def feed(self, chunk: memoryview) -> None:
        """Take a piece; the view is good only during the call."""

    def landing(self) -> memoryview | None:
        """Where the next bytes belong, if they may be received straight into place."""

    def landed(self, nbytes: int) -> None:
        """That many bytes were received into ``landing()``."""

    def finish(self) -> None:
        """The message is complete."""

    def abandon(self) -> None:
        """The rest of the message will not come: give back what was taken for it."""


class RpcCall(Protocol):
    """What a method does with a stream. It answers through the stream, now or later.

    ``streaming`` calls may stay open with nothing to say; the others owe one message.
    """

    @property
    def streaming(self) -> bool: ...

    def whole(self, message: memoryview) -> None:
        """A complete, uncompressed message; the view is good only during the call."""

    def sink(self, nbytes: int, compressed: bool) -> MessageSink:
        """A message of ``nbytes`` begins, to come in pieces, or compressed."""

    def end(self) -> None:
        """The client has sent all it will."""

    def gone(self) -> None:
        """The client cancelled, or its connection broke: no answer is wanted."""
