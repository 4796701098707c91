"""The models of a process: weights once for all partitions, kept while one of them holds them."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from typing import Protocol

from interlace.core.model import Model
from interlace.core.tensor import Signature
from interlace.device.cuda.partitions.lanes import Lane
from interlace.device.cuda.worker.flight import Program


class Served(Protocol):
    """A model whose weights are on the GPU, with its programs by lane."""

    @property
    def signature(self) -> Signature: ...
    @property
    def weights_bytes(self) -> int: ...
    @property
    def resident_bytes(self) -> int: ...
    def ready(self, lane: Lane, batches: Sequence[int]) -> bool:
        """True if it can run at those batch sizes on that lane now."""
        ...

    def prepare(self, lane: Lane, batches: Sequence[int]) -> None:
        """Make it ready there; takes its time, and disturbs nobody who is being served."""
        ...

    def program(self, lane: Lane, rows: int, dims: Mapping[str, tuple[int, ...]]) -> Program:
        """What runs a batch of so many rows, with inputs of these shapes, on that lane."""
        ...

    def close(self) -> None:
        """Destroy its graphs, then give its memory back. Nothing of it runs."""
        ...


class Models:
    """Who holds what. ``load`` and ``drop`` are jobs for the loader's thread, the rest is quick."""

    def __init__(
        self, opened: Callable[[Model], Served], closed: Callable[[str], None] = lambda key: None
    ) -> None:
        """``closed`` gets the key of a model when nothing is left of it."""
        self._opened = opened
        self._closed = closed
        self._served: dict[str, Served] = {}
        self._holders: dict[str, set[str]] = {}
        self._lock = threading.Lock()  # between two looks at who holds a model

    def at_once(
        self, model: Model, partition: str, lane: Lane, batches: Sequence[int]
    ) -> Served | None:
        """The model, held by the partition now, if it needs nothing more to run on its lane."""
        with self._lock:
            served = self._served.get(model.key)
            if served is None or not served.ready(lane, batches):
                return None
            self._holders.setdefault(model.key, set()).add(partition)
            return served

    def load(self, model: Model, partition: str, lane: Lane, batches: Sequence[int]) -> Served:
        """A job: open the model unless another partition has, and make it ready on a lane.

        Raises:
            Exception: whatever opening or capturing raises; nothing is left of it then.
        """
        served = self._served.get(model.key)
        if served is not None:
            served.prepare(lane, batches)
        else:
            served = self._open(model, lane, batches)
        with self._lock:
            self._served[model.key] = served
            self._holders.setdefault(model.key, set()).add(partition)
        return served

    def leave(self, key: str, partition: str) -> bool:
        """A partition serves it no more; true if nobody does, so that it is to be dropped."""
        with self._lock:
            holders = self._holders.get(key, set())
            holders.discard(partition)
            return not holders

    def drop(self, key: str) -> None:
        """A job: let go of a model, unless somebody holds it again."""
        with self._lock:
            if self._holders.get(key):
                return
            self._holders.pop(key, None)
            served = self._served.pop(key, None)
        if served is not None:
            self._close(key, served)

    def close(self) -> None:
        """Let go of everything; nothing runs any more. Every step is tried."""
        served, self._served = self._served, {}
        with ExitStack() as steps:
            for key, one in served.items():
                steps.callback(self._close, key, one)

    def _open(self, model: Model, lane: Lane, batches: Sequence[int]) -> Served:
        served = self._opened(model)
        try:
            served.prepare(lane, batches)
        except BaseException:
            self._close(model.key, served)
            raise
        return served

    def _close(self, key: str, served: Served) -> None:
        try:
            served.close()
        finally:
            self._closed(key)
