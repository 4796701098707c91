"""Weights held once on a GPU that several processes use: one process lends them to the others."""

from __future__ import annotations

import contextlib
import pickle
import selectors
import socket
import time
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import msgspec

from interlace.core.model import Model
from interlace.device.process.error_text import error_text
from interlace.shm.frame_socket import BlockingFrameSocket

if TYPE_CHECKING:
    from interlace.device.cuda.lanes import Lane
    from interlace.device.cuda.models.weights import WeightsHandle
    from interlace.device.cuda.worker.model_cache import ModelCache

#: A borrower may be ready before the weight server is.
_CONNECT_S: Final = 120.0
_LOOK_S: Final = 0.05
#: How long the weight server outlives its owner while borrowers still read.
_LAST_S: Final = 3.0


class BorrowWeights(msgspec.Struct, array_like=True, tag=1, frozen=True):
    """Have this model's weights for as long as the connection stands."""

    model: Model


class WeightsLent(msgspec.Struct, array_like=True, tag=1, frozen=True):
    """``WeightsHandle``, pickled: both ends are processes of one server."""

    weights: bytes


class LoanRefused(msgspec.Struct, array_like=True, tag=2, frozen=True):
    detail: str


_decode_borrow = msgspec.msgpack.Decoder[BorrowWeights](BorrowWeights).decode
_decode_answer = msgspec.msgpack.Decoder[WeightsLent | LoanRefused](
    WeightsLent | LoanRefused
).decode

WeightsConnection = BlockingFrameSocket[Any, Any]


class WeightBorrower:
    """What a process has borrowed, by deployment key; a connection each."""

    def __init__(self, path: str, note: Callable[[str], None]) -> None:
        self._path = path
        self._note = note
        self._connections: dict[str, WeightsConnection] = {}

    def lent(self, model: Model) -> WeightsHandle | None:
        """The weights of a model; ``None``, and said why, if they cannot be had."""
        try:
            connection: WeightsConnection = BlockingFrameSocket(self._connected(), _decode_answer)
            connection.send(BorrowWeights(model))
            answer = connection.receive()
        except OSError as error:
            answer = LoanRefused(str(error))
        if not isinstance(answer, WeightsLent):
            why = (
                answer.detail
                if isinstance(answer, LoanRefused)
                else "the process that lends them is gone"
            )
            self._note(f"{model.key}: its weights are not shared: {why}")
            return None
        self._connections[model.key] = connection
        weights: WeightsHandle = pickle.loads(answer.weights)
        return weights

    def give_back(self, key: str) -> None:
        """Nothing reads that model's weights any more; unknown models pass."""
        connection = self._connections.pop(key, None)
        if connection is not None:
            connection.close()

    def _connected(self) -> socket.socket:
        ends_s = time.monotonic() + _CONNECT_S
        while True:
            sock = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            try:
                sock.connect(self._path)
                return sock
            except (FileNotFoundError, ConnectionRefusedError):
                sock.close()
                if time.monotonic() > ends_s:
                    raise
            time.sleep(_LOOK_S)


class WeightServer:
    """Serves borrowers one after the other until ``owner`` is closed.

    A model is opened for its first borrower, and held by each one's connection. ``lane`` is where
    it is tried.
    """

    def __init__(self, path: str, owner: int, models: ModelCache, lane: Lane) -> None:
        self._lane = lane
        self._models = models
        self._connections: dict[int, tuple[WeightsConnection, list[str]]] = {}
        self._open = True
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._listener.bind(path)
        self._listener.listen()
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._listener, selectors.EVENT_READ, self._accept)
        self._selector.register(owner, selectors.EVENT_READ, partial(self._end, owner))

    def serve(self) -> None:
        """Until the owner closes its end, and a little longer while borrowers still read."""
        last_s = float("inf")
        while self._open or (self._connections and time.monotonic() < last_s):
            for key, _ in self._selector.select(None if self._open else _LOOK_S):
                key.data()
            if not self._open and last_s == float("inf"):
                last_s = time.monotonic() + _LAST_S

    def _end(self, owner: int) -> None:
        self._open = False
        self._selector.unregister(owner)

    def _accept(self) -> None:
        sock, _ = self._listener.accept()
        connection: WeightsConnection = BlockingFrameSocket(sock, _decode_borrow)
        self._connections[sock.fileno()] = (connection, [])
        self._selector.register(sock.fileno(), selectors.EVENT_READ, partial(self._hear, sock))

    def _hear(self, sock: socket.socket) -> None:
        number = sock.fileno()
        connection, keys = self._connections[number]
        frame = connection.receive()
        if isinstance(frame, BorrowWeights):
            with contextlib.suppress(OSError):  # it is gone: the next read says so
                connection.send(self._lend(frame.model, str(number)))
            keys.append(frame.model.key)
            return
        self._selector.unregister(number)
        del self._connections[number]
        connection.close()
        for key in keys:
            self._leave(key, str(number))

    def _lend(self, model: Model, borrower: str) -> WeightsLent | LoanRefused:
        try:
            served = self._models.load(model, borrower, self._lane, (1,))
            return WeightsLent(pickle.dumps(served.share()))
        except Exception as error:
            self._leave(model.key, borrower)
            return LoanRefused(error_text("they could not be lent", error))

    def _leave(self, key: str, borrower: str) -> None:
        if self._models.leave(key, borrower):
            self._models.drop(key)
