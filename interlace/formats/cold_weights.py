"""An open model's weights, which come and go: in memory that is lent to it, or in its file.

The file's mapping is always right to read, and slow where its pages are not mapped yet; so weights
lie there until a plan has them copied. A thread reads the file, in order of execution, into memory
that was touched before (fresh memory would cost fifteen times as much as the copy), while the model
runs: an operator whose weights are on their way waits for them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager, nullcontext
from functools import partial

import torch

from interlace.formats.arriving import ArrivingWeights
from interlace.formats.extents_file import WeightUse
from interlace.formats.runner import Arrived
from interlace.formats.weight_uses import WeightWatcher
from interlace.formats.weights_file import WeightsFile


class ColdWeights:
    """The weights of one model that this process has open; they are found in their file.

    One thread calls it, which is also the one that runs the model.
    """

    def __init__(self, file: WeightsFile, weights: Mapping[str, torch.Tensor]) -> None:
        self.file = file
        self.nbytes = tuple(extent.nbytes for extent in file.extents)
        self._weights = {name: weights[name] for use in file.uses for name in use.weights}
        self._use_of = {name: n for n, use in enumerate(file.uses) for name in use.weights}
        self._arriving: ArrivingWeights | None = None
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
        self._arriving = ArrivingWeights(self.file, places, memory, done)

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
        return WeightWatcher(self._weights, partial(self._wait, self._arriving))

    def close(self) -> None:
        """Stop what is on its way."""
        if self._arriving is not None:
            self._arriving.end()

    def _wait(self, arriving: ArrivingWeights, use: WeightUse) -> None:
        for index in {self._use_of[name] for name in use.weights}:
            arriving.wait(index)

    def _find(self, tensors: Mapping[str, torch.Tensor]) -> None:
        with torch.no_grad():
            for name, tensor in tensors.items():
                self._weights[name].data = tensor


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
