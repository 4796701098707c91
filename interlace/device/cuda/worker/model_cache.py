"""The models of a process: who holds what, and the thread that opens, captures and closes them."""

from __future__ import annotations

import gc
import os
import queue
import threading
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from typing import Any, Final, NamedTuple

from interlace.core.model import Model
from interlace.device.cuda.lanes import Lane
from interlace.device.cuda.memory.budget import is_short_of_memory
from interlace.device.cuda.models.loaded import LoadedModel
from interlace.device.process.error_text import MemoryLimitError


class ModelCache:
    """Who holds what. ``load`` and ``drop`` are jobs for the loader's thread, the rest is quick."""

    def __init__(
        self,
        opened: Callable[[Model, bool], LoadedModel],
        closed: Callable[[str], None] = lambda key: None,
        keep_bytes: int = 0,
        trim: Callable[[], None] = lambda: None,
    ) -> None:
        """``opened`` hears whether weights come later, ``closed`` the key when nothing is left.

        ``trim`` gives the driver back what was freed, and may delay what is being served.

        What nobody holds is kept while all of that takes at most ``keep_bytes``. Who left longest
        ago goes first, and all go when another model is short of memory.
        """
        self._opened = opened
        self._closed = closed
        self._keep_bytes = keep_bytes
        self._trim = trim
        self._served: dict[str, LoadedModel] = {}  # those that were let go of stand in that order
        self._holders: dict[str, set[str]] = {}
        self._lock = threading.Lock()  # between two looks at who holds a model

    def at_once(
        self, model: Model, partition: str, lane: Lane, batches: Sequence[int], cold: bool = False
    ) -> LoadedModel | None:
        """The model, held by the partition now, if it needs nothing more to run on its lane."""
        with self._lock:
            served = self._served.get(model.key)
            if served is None or not served.ready(lane, batches):
                return None
            if not self._holders.get(model.key) and _another(served, model, cold):
                return None
            self._holders.setdefault(model.key, set()).add(partition)
            return served

    def load(
        self, model: Model, partition: str, lane: Lane, batches: Sequence[int], cold: bool = False
    ) -> LoadedModel:
        """A job: open the model unless another partition has, and make it ready on a lane.

        If it is short of memory, what is kept for later goes, and it is tried once more.

        Raises:
            Exception: whatever opening or capturing raises; nothing is left of it then.
        """
        known = self._served.get(model.key)
        if known is not None and not self._holders.get(model.key) and _another(known, model, cold):
            self._forget(model.key)
        try:
            served = self._prepared(model, lane, batches, cold)
        except Exception as error:
            if not is_short_of_memory(error):
                raise
            if not self._made_room(model.key, partition) and isinstance(error, MemoryLimitError):
                raise
            served = self._prepared(model, lane, batches, cold)
        with self._lock:
            self._served[model.key] = served
            self._holders.setdefault(model.key, set()).add(partition)
        return served

    def leave(self, key: str, partition: str) -> bool:
        """A partition serves it no more; true if no other does, so that it is to be dropped."""
        with self._lock:
            holders = self._holders.get(key, set())
            holders.discard(partition)
            return not holders

    def drop(self, key: str) -> None:
        """A job: close a model, unless a partition holds it again.

        Raises:
            Exception: whatever closing it, or one that was kept, raises.
        """
        with self._lock:
            if self._holders.get(key) or key not in self._served:
                return
            self._served[key] = self._served.pop(key)  # the last to have been let go of
            kept = [key for key in self._served if not self._holders.get(key)]
            held_bytes = sum(self._served[key].resident_bytes for key in kept)
        for one in kept:
            if held_bytes <= self._keep_bytes:
                break
            held_bytes -= self._served[one].resident_bytes
            self._forget(one)

    def close(self) -> None:
        """Let go of everything; nothing runs any more. Every step is tried."""
        served, self._served = self._served, {}
        with ExitStack() as steps:
            for key, one in served.items():
                steps.callback(self._close, key, one)

    def _prepared(
        self, model: Model, lane: Lane, batches: Sequence[int], cold: bool
    ) -> LoadedModel:
        served = self._served.get(model.key)
        if served is None:
            return self._open(model, lane, batches, cold)
        served.prepare(lane, batches)
        return served

    def _made_room(self, key: str, partition: str) -> bool:
        """Give back what is kept for later, but for that model there; false if there is none."""
        with self._lock:
            kept = [one for one in self._served if one != key and not self._holders.get(one)]
            left = []
            for one, served in self._served.items():
                if one not in kept:
                    held = self._holders.get(one, set()) | ({partition} if one == key else set())
                    left.append(served.leave_lanes(held))
        for one in kept:
            self._forget(one)
        jobs = [job for job in left if job is not None]
        for job in jobs:
            job()
        self._trim()
        return bool(kept or jobs)

    def _forget(self, key: str) -> None:
        """Close a model that no partition holds."""
        with self._lock:
            if self._holders.get(key):
                return
            self._holders.pop(key, None)
            served = self._served.pop(key, None)
        if served is not None:
            self._close(key, served)

    def _open(self, model: Model, lane: Lane, batches: Sequence[int], cold: bool) -> LoadedModel:
        served = self._opened(model, cold)
        try:
            served.prepare(lane, batches)
        except BaseException:
            self._close(model.key, served)
            raise
        return served

    def _close(self, key: str, served: LoadedModel) -> None:
        try:
            served.close()
        finally:
            self._closed(key)


def _another(served: LoadedModel, model: Model, cold: bool) -> bool:
    """Whether another one is wanted under the same name, or the same in another way."""
    return served.model != model or (served.cold is not None) != cold


#: Jobs after which what models left behind is searched for once.
_THAW: Final = 64


class _LoaderJob(NamedTuple):
    run: Callable[[], Any]
    ended: Callable[[Any], None]


class LoaderThread:
    """Jobs one after the other on a thread of its own; ``drain`` reports those that ended.

    One at a time, since captures are, and since models that load side by side would each see the
    memory that the other takes. ``fileno`` is readable when a job has ended.
    """

    def __init__(self) -> None:
        self._wake = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._jobs: queue.SimpleQueue[_LoaderJob | None] = queue.SimpleQueue()
        self._ended: deque[tuple[Callable[[Any], None], Any]] = deque()
        self._open = 0
        self._thread = threading.Thread(target=self._serve, name="loader", daemon=True)
        self._thread.start()

    @property
    def idle(self) -> bool:
        """No job is under way, and every end was reported."""
        return self._open == 0

    def submit(self, run: Callable[[], Any], ended: Callable[[Any], None]) -> None:
        """Have a job done; ``ended`` gets what it returned or raised, inside ``drain``."""
        self._open += 1
        self._jobs.put(_LoaderJob(run, ended))

    def fileno(self) -> int:
        return self._wake

    def drain(self) -> None:
        """Report the jobs that have ended."""
        os.eventfd_read(self._wake)
        while self._ended:
            ended, result = self._ended.popleft()
            self._open -= 1
            ended(result)

    def close(self) -> None:
        """End the thread after what it does now."""
        self._jobs.put(None)
        self._thread.join()
        os.close(self._wake)

    def _serve(self) -> None:
        done = 0
        while (job := self._jobs.get()) is not None:
            try:
                result = job.run()
            except BaseException as error:  # a model's own code may even call sys.exit
                result = error
            done += 1
            freeze_heap(thaw=done % _THAW == 0)
            self._ended.append((job.ended, result))
            os.eventfd_write(self._wake, 1)


def freeze_heap(thaw: bool = False) -> None:
    """Leave everything that is there now out of later searches, after one among what is new.

    A search through torch and a few models stops the process for 50 ms and more, one through what a
    load has left for 3. Cycles of what is set aside are only found when all of it is searched: with
    ``thaw``, now.
    """
    if thaw:
        gc.unfreeze()
    gc.collect()
    gc.freeze()
