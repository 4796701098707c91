"""The contract of every model format, and weights that are swapped from their file."""

from __future__ import annotations

import mmap
import os
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future
from pathlib import Path
from threading import Event, Lock, Thread
from typing import Any, Final, NamedTuple, Protocol, runtime_checkable
from weakref import finalize

import numpy as np

from interlace.core.errors import ServeError
from interlace.core.model import Model
from interlace.core.request import CallContext
from interlace.core.tensor import Signature, Tensor
from interlace.formats.page_cache import cached_pages, map_file

#: Operators that read some rows of their weights, as torch and ONNX call them.
_LOOKUPS: Final = frozenset({"embedding", "Gather"})


class WeightUse(NamedTuple):
    """An operator ("linear", "embedding") and the weights that no operator before it read."""

    operator: str
    weights: tuple[str, ...]


class Extent(NamedTuple):
    """A run of bytes of the file: the weights of one use, and the gap behind them."""

    begin: int
    nbytes: int


class _OpenFile:
    """Kept open, so that a folder that is cleaned meanwhile takes nothing away."""

    def __init__(self, path: Path) -> None:
        with path.open("rb", buffering=0) as file:
            self.mapped = map_file(file)
            self.fd = os.dup(file.fileno())
        finalize(self, os.close, self.fd)


class ExtentsFile:
    """A file of weights, mapped privately while it is read or executed from.

    If its size is given, it is opened at the first access.

    Subclasses set ``uses``, the extent of each, and ``weights_bytes``: the size of each use's
    weights without gaps.

    Raises:
        OSError: the file cannot be opened.
        ValueError: it is too short, or its size is not the given one.
    """

    uses: tuple[WeightUse, ...]
    extents: tuple[Extent, ...]
    weights_bytes: tuple[int, ...]

    def __init__(self, path: Path, nbytes: int | None = None) -> None:
        self.path = path
        self._open = _OpenFile(path) if nbytes is None else None
        self.nbytes = len(self._now.mapped) if nbytes is None else nbytes

    @property
    def _now(self) -> _OpenFile:
        if self._open is None:
            opened = _OpenFile(self.path)
            if len(opened.mapped) != self.nbytes:
                raise ValueError(
                    f"{self.path}: it is not the file that was written; "
                    "unload the model and load it again"
                )
            self._open = opened
        return self._open

    @property
    def tables(self) -> tuple[Extent, ...]:
        """Extents of lookup tables: an execution reads some rows, and waits for no others."""
        pairs = zip(self.uses, self.extents, strict=True)
        return tuple(extent for use, extent in pairs if use.operator in _LOOKUPS)

    @property
    def _mapped(self) -> mmap.mmap:
        return self._now.mapped

    @property
    def fd(self) -> int:
        return self._now.fd

    def rest(self) -> None:
        """Close it until it is needed again; what was given out of it stays right."""
        self._open = None

    def read(self, index: int, memory: memoryview, at: int) -> None:
        """Read one use's extent into memory.

        Raises:
            OSError: the file cannot be read to its end.
        """
        begin, left = self.extents[index]
        file = self._now
        while left:
            count = os.preadv(file.fd, [memory[at : at + left]], begin)
            if not count:
                raise OSError(f"{self.path}: it ends at {begin} bytes")
            begin, at, left = begin + count, at + count, left - count

    def cached(self, index: int) -> bool:
        """Whether one use's bytes are all in the page cache (``mincore``), not on disk only."""
        return all(cached_pages(self._mapped, *self.extents[index]))

    def forget(self) -> None:
        """Have the mapping's pages found anew when they are next read; they stay in the cache."""
        self._mapped.madvise(mmap.MADV_DONTNEED)

    def forget_use(self, index: int) -> None:
        """The same of one use's, if the file is open; of the first with what lies before it."""
        if self._open is not None:
            begin, nbytes = self.extents[index]
            first = begin // mmap.PAGESIZE * mmap.PAGESIZE if index else 0
            self._open.mapped.madvise(mmap.MADV_DONTNEED, first, begin + nbytes - first)

    def drop(self) -> None:
        """Have the file's pages leave the page cache, where nobody else has them mapped."""
        os.posix_fadvise(self.fd, 0, 0, os.POSIX_FADV_DONTNEED)


#: Executions before a model is as fast as it gets: TorchScript profiles twice and compiles on the
#: third.
WARM_RUNS: Final = 3

#: One tensor on the host. ``BYTES`` are object arrays of ``bytes``, ``BF16`` are uint16 arrays.
Array = np.ndarray[Any, Any]


#: Why a fetch failed that nobody waited for any more.
CANCELLED: Final = "cancelled"


#: Told once how a fetch ended: why it failed, or nothing.
OnArrived = Callable[[str], None]


class ComingWeights(Protocol):
    """Swapped weights, by use in the order of execution (``formats.cold_weights``)."""

    @property
    def nbytes(self) -> tuple[int, ...]:
        """The memory that each use takes."""

    @property
    def file(self) -> ExtentsFile:
        """Where they come from."""

    def place(self, places: Mapping[int, int], memory: memoryview) -> None: ...
    def leave(self, indices: Iterable[int]) -> None: ...
    def fetch(self, places: Mapping[int, int], memory: memoryview, done: OnArrived) -> None: ...
    def cancel(self) -> None: ...


class ModelRunner(Protocol):
    """A model ready to run in this process. One thread at a time calls it."""

    @property
    def signature(self) -> Signature:
        """What the model says of itself, filled up from its description where it is silent.

        ``max_batch`` is the largest row count that the model itself allows, 0 if it names none.
        """

    @property
    def resident_bytes(self) -> int:
        """Weights and constants the model holds in this process, those it shares included."""

    @property
    def shared_bytes(self) -> int:
        """The part of ``resident_bytes`` that all processes running this model have in common."""

    @property
    def warnings(self) -> tuple[str, ...]:
        """What an operator should know, such as why the weights are not shared."""

    @property
    def cold(self) -> ComingWeights | None:
        """Its weights, if they can be swapped."""

    def run(self, inputs: Mapping[str, Array]) -> dict[str, Array]:
        """Outputs by name for one batch; the inputs are only read and may be read-only.

        An output may be a view of an input's memory.

        Raises:
            Exception: whatever the model raises; ``ValueError`` if a result contradicts the
                signature.
        """

    def close(self) -> None:
        """Let go of the model's memory; ``run`` must not be called again."""


class TypedArray(NamedTuple):
    """An array with its v2 datatype, which the array's own does not always tell."""

    datatype: str
    array: Array


class ModelResponse(NamedTuple):
    """What a model answers: outputs by name, and what its code says besides, as JSON."""

    outputs: Mapping[str, TypedArray] = {}
    parameters: str = ""


#: A response, or why there is none.
Answer = ModelResponse | ServeError


def _unheard(answer: Answer | None, final: bool) -> None:
    """Nobody wants responses before the answer."""


class RequestInputs(NamedTuple):
    """One request of a batch: its rows of each input, and the outputs it wants (empty: all).

    ``respond`` takes responses of a decoupled model, ``None`` for one without outputs, and whether
    it is the last. ``cancelled`` tells whether the client went away.
    """

    inputs: Mapping[str, Array]
    context: CallContext = CallContext()
    outputs: tuple[str, ...] = ()
    respond: Callable[[Answer | None, bool], None] = _unheard
    cancelled: Callable[[], bool] = bool


class LentArray(Protocol):
    """An output of a called model. Its memory is kept as long as this object is."""

    @property
    def tensor(self) -> Tensor:
        """Where it lies."""

    def read(self) -> TypedArray:
        """The values where they lie, read-only; strings are copied.

        Raises:
            ValueError: its memory went with its process.
        """


class LentResponse(NamedTuple):
    """A response of a called model, and the one that follows, if one does."""

    outputs: Mapping[str, LentArray]
    parameters: str = ""
    follows: Future[LentResponse] | None = None


class OutgoingCall(NamedTuple):
    """A request of a model's code to another model; as ``core.request.BlsCall``.

    One that ``streams`` takes any number of responses. ``control`` ("load", "unload" or "ready") is
    what the server is to do with the model, instead of a request.
    """

    model: str
    version: str
    inputs: Mapping[str, TypedArray | LentArray]
    outputs: tuple[str, ...]
    context: CallContext
    timeout_us: int
    streams: bool = False
    control: str = ""


#: Begins a call of another model, for the batch that runs; the future may have a ServeError.
CallModels = Callable[[OutgoingCall], Future[LentResponse]]


@runtime_checkable
class TakesTurns(Protocol):
    """A runner whose open module may run other models of its architecture, too."""

    @property
    def architecture(self) -> str:
        """As ``formats.shared_architecture``; empty if it shares with none."""

    def of_another(self, model: Model, weights_dir: str) -> ModelRunner:
        """A model of the same architecture, without opening it.

        Raises:
            OSError, ValueError: its weights are not in that folder as this one's are.
        """


#: Copies give way to threads that execute or serve: on a core that those want all of they have 110
#: parts to 1,024. With five steps neighbours were delayed nearly as much as with none.
_NICE: Final = 10


class ArrivingWeights:
    """Begins at once. ``there`` is called as each extent has come, ``done`` once in the thread."""

    def __init__(
        self,
        file: ExtentsFile,
        places: Mapping[int, int],
        memory: memoryview,
        done: OnArrived,
        there: Callable[[int], None] = lambda index: None,
    ) -> None:
        self._file = file
        self._places = dict(sorted(places.items()))
        self._memory = memory
        self._done = done
        self._there = there
        self._came = {index: Event() for index in self._places}
        self._left = set(self._places)  #: nobody has begun to read these
        self._taking = Lock()
        self._stopped = False
        self.failure = ""
        self.over = False
        self._thread = Thread(target=self._read_all, name="weights", daemon=True)
        self._thread.start()

    def wait(self, index: int) -> None:
        """Until that extent has come, if it is on its way; read here if nobody reads it yet.

        Raises:
            OSError: it cannot be read, or was cancelled.
        """
        if (came := self._came.get(index)) is not None:
            self._read(index)
            came.wait()
            if self.failure:
                raise OSError(self.failure)

    def cancel(self) -> None:
        """Read no further than the extent that is being read."""
        self._stopped = True

    def end(self) -> None:
        """Read no further, and wait until nothing is read."""
        self._stopped = True
        self._thread.join()

    def _read_all(self) -> None:
        os.nice(_NICE)  # of this thread alone
        for index, came in self._came.items():
            self._read(index)
            came.wait()  # whoever reads it
        self.over = True
        self._done(self.failure)

    def _read(self, index: int) -> None:
        """Read an extent, unless another thread has begun to, or nothing is read any more."""
        with self._taking:
            if index not in self._left:
                return
            self._left.remove(index)
            if self._stopped and not self.failure:
                self.failure = CANCELLED
        if not self.failure:
            try:
                self._file.read(index, self._memory, self._places[index])
                self._there(index)
            except (OSError, ValueError) as error:
                self.failure = str(error)
        self._came[index].set()
