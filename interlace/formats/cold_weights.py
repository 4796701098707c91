"""An open model's weights, which come and go: in memory that is lent to it, or in its file.

The file's mapping is always right to read, and slow where its pages are not mapped yet; so weights
lie there until a plan has them copied. A thread reads the file, in order of execution, into memory
that was touched before (fresh memory would cost fifteen times as much as the copy), while the model
runs: an operator whose weights are on their way waits for them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager, nullcontext
from threading import Event, Thread
from time import perf_counter

import torch

from interlace.formats.runner import CANCELLED, Arrived
from interlace.formats.weight_uses import WeightUse, WeightWatcher
from interlace.formats.weights_file import WeightsFile


class ColdWeights:
    """The weights of one model that this process has open; they are found in their file.

    One thread calls it, which is also the one that runs the model.
    """

    def __init__(self, file: WeightsFile, weights: Mapping[str, torch.Tensor]) -> None:
        self.file = file
        self.nbytes = tuple(extent.nbytes for extent in file.extents)
        self._weights = {name: weights[name] for use in file.uses for name in use.weights}
        self._arriving: _Arriving | None = None
        self.leave(range(len(file.uses)))

    def place(self, places: Mapping[int, int], memory: memoryview) -> None:
        """Have the model find some uses' weights in memory, at these offsets; they are there."""
        for index, at in places.items():
            self._find(self.file.tensors(index, memory, at))

    def leave(self, indices: Iterable[int]) -> None:
        """Have the model find these uses' weights in the file."""
        if self._arriving is not None and self._arriving.over:
            self._arriving = None
        for index in indices:
            self._find(self.file.tensors(index))

    def fetch(
        self, places: Mapping[int, int], memory: memoryview, done: Callable[[Arrived], None]
    ) -> None:
        """Have these uses' weights come into memory; ``done`` is called once, by another thread.

        The model may run at once. Fetches of a model follow one another.
        """
        self.place(places, memory)
        self._arriving = _Arriving(self.file, dict(sorted(places.items())), memory, done)

    def cancel(self) -> None:
        """Stop a fetch; its ``done`` says so, unless it was too late."""
        if self._arriving is not None:
            self._arriving.cancel()

    def arrivals(self) -> AbstractContextManager[object]:
        """To run the model in: an operator whose weights are on their way waits for them.

        Raises (within):
            OSError: they cannot be read, or were cancelled.
        """
        if self._arriving is None:
            return nullcontext()
        if self._arriving.over and not self._arriving.failure:
            self._arriving = None
            return nullcontext()
        return WeightWatcher(self._weights, self._arriving.wait)

    def close(self) -> None:
        """Stop what is on its way."""
        if self._arriving is not None:
            self._arriving.end()

    def _find(self, tensors: Mapping[str, torch.Tensor]) -> None:
        with torch.no_grad():
            for name, tensor in tensors.items():
                self._weights[name].data = tensor


class _Arriving:
    """Weights on their way: a thread reads them in order."""

    def __init__(
        self,
        file: WeightsFile,
        places: Mapping[int, int],
        memory: memoryview,
        done: Callable[[Arrived], None],
    ) -> None:
        self._file = file
        self._places = places
        self._memory = memory
        self._done = done
        self._there = {index: Event() for index in places}
        self._use_of = {name: n for n, use in enumerate(file.uses) for name in use.weights}
        self._stopped = False
        self.failure = ""
        self.over = False
        self._thread = Thread(target=self._read_all, name="weights", daemon=True)
        self._thread.start()

    def wait(self, use: WeightUse) -> None:
        for index in {self._use_of[name] for name in use.weights} & self._there.keys():
            self._there[index].wait()
            if self.failure:
                raise OSError(self.failure)

    def cancel(self) -> None:
        self._stopped = True

    def end(self) -> None:
        self._stopped = True
        self._thread.join()

    def _read_all(self) -> None:
        began = perf_counter()
        disk_bytes = 0
        for index, there in self._there.items():
            if self._stopped and not self.failure:
                self.failure = CANCELLED
            if not self.failure:
                try:
                    if not self._file.cached(index):
                        disk_bytes += self._file.extents[index].nbytes
                    self._file.read(index, self._memory, self._places[index])
                except (OSError, ValueError) as error:
                    self.failure = str(error)
            there.set()
        self.over = True
        self._done(Arrived(self.failure, disk_bytes, 1e3 * (perf_counter() - began)))


def weight_uses(
    weights: Mapping[str, torch.Tensor], run: Callable[[], object]
) -> tuple[WeightUse, ...]:
    """Which operator reads which weights first when ``run`` executes the model."""
    found: list[WeightUse] = []
    with WeightWatcher(weights, found.append):
        run()
    read = {name for use in found for name in use.weights}
    left = tuple(name for name in weights if name not in read)
    return (*found, WeightUse("", left)) if left else tuple(found)
