"""Weights over the link of another GPU, and on from there: parallel transmission.

DeepPlan, section 4.3. One process has both GPUs: the one that it serves on, and of the peer a copy
engine and some memory. So nothing is shared between processes, and the order is that of streams and
events alone.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from typing import Final

from interlace.device.cuda.driver.api import CopyGroup, Driver, Piece

#: One half is filled over the peer's link while the other is passed on: long enough for the rate
#: of a large copy, short beside a load.
HALF_BYTES: Final = 16 << 20
_HALVES: Final = 2


class PeerPath:
    """Copies host -> peer, on a stream of the peer's, then peer -> here, on ``stream``.

    A half of the buffer is filled again when it was passed on.
    """

    def __init__(self, driver: Driver, place: int) -> None:
        """
        Raises:
            CudaError: there is no such GPU, its memory cannot be read from here, or it has none.
        """
        self._driver = driver
        self._turn = 0
        with ExitStack() as undo:
            self._peer = peer = driver.peer(place)
            undo.callback(peer.close)
            self._buffer = peer.allocate(_HALVES * HALF_BYTES)
            undo.callback(peer.free, self._buffer)
            self.over = peer.stream()
            undo.callback(peer.destroy_stream, self.over)
            self.stream = driver.stream()
            undo.callback(driver.destroy_stream, self.stream)
            self._came = [peer.event() for _ in range(_HALVES)]
            self._passed = [driver.event() for _ in range(_HALVES)]
            undo.pop_all()

    def bring(self, groups: Sequence[CopyGroup]) -> None:
        """Enqueue copies of pieces of the host's memory, and record each group's event behind them.

        Raises:
            CudaError: a driver refused; what came before is enqueued.
        """
        for group in groups:
            for target, source, nbytes in _cut(group.pieces):
                half = self._turn % _HALVES
                between = self._buffer + half * HALF_BYTES
                came, passed = self._came[half], self._passed[half]
                filled = CopyGroup(passed, [(between, source, nbytes)], came)
                self._peer.copy_groups([filled], self.over)
                self._turn += 1
                emptied = CopyGroup(came, [(target, between, nbytes)], passed)
                self._driver.copy_groups([emptied], self.stream)
            self._driver.record(group.ready, self.stream)

    def close(self) -> None:
        """Nothing is on its way.

        Raises:
            CudaError: a driver refused at least once; everything was tried.
        """
        with ExitStack() as steps:
            steps.callback(self._peer.close)
            steps.callback(self._peer.free, self._buffer)
            for came, passed in zip(self._came, self._passed, strict=True):
                steps.callback(self._peer.destroy_event, came)
                steps.callback(self._driver.destroy_event, passed)
            steps.callback(self._peer.destroy_stream, self.over)
            steps.callback(self._driver.destroy_stream, self.stream)
            steps.callback(self._peer.synchronize, self.over)
            steps.callback(self._driver.synchronize, self.stream)


def _cut(pieces: Sequence[Piece]) -> Iterator[Piece]:
    for target, source, nbytes in pieces:
        for begin in range(0, nbytes, HALF_BYTES):
            yield target + begin, source + begin, min(HALF_BYTES, nbytes - begin)
