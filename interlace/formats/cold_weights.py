"""Swapped weights of an open model: in memory that is lent to it, or in its file.

The file's mapping can always be read, but is slow where its pages are not mapped yet. Weights stay
there until a plan has them copied. A thread copies them from the file in the order of execution
while the model runs: an operator waits for weights that are on their way. The target memory was
touched before: fresh memory would cost fifteen times as much as the copy.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext, suppress
from functools import partial
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from interlace.formats.runner import ArrivingWeights, OnArrived, WeightUse
from interlace.formats.weights_file import WeightsFile


class WeightWatcher(TorchDispatchMode):  # type: ignore[misc]
    """While it is entered, ``on_use`` is called before each operator that reads new weights.

    Every torch format ends in the same operators, whether modules, exported programs or TorchScript
    called them, so one watcher serves all. It costs about 10 us an operator, and is on no warm
    path.
    """

    def __init__(
        self, tensors: Mapping[str, torch.Tensor], on_use: Callable[[WeightUse], None]
    ) -> None:
        super().__init__()
        self._on_use = on_use
        self._waiting: dict[int, list[str]] = {}
        for name, tensor in tensors.items():
            self._waiting.setdefault(_storage(tensor), []).append(name)

    def __torch_dispatch__(
        self,
        func: Any,
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        if self._waiting:
            named = {} if kwargs is None else kwargs
            read = dict.fromkeys(_storage(one) for one in _tensors((args, named)))
            found = [name for at in read for name in self._waiting.pop(at, ())]
            if found:
                self._on_use(WeightUse(func.__name__.partition(".")[0], tuple(found)))
        return func(*args, **(kwargs or {}))


def _storage(tensor: torch.Tensor) -> int:
    address: int = tensor.untyped_storage().data_ptr()
    return address


def _tensors(values: Any) -> Iterator[torch.Tensor]:
    for value in values.values() if isinstance(values, dict) else values:
        if isinstance(value, torch.Tensor):
            yield value
        elif isinstance(value, list | tuple | dict):
            yield from _tensors(value)


class _Shown:
    """The tensors of an open module, and whose numbers they show."""

    def __init__(self, tensors: Mapping[str, torch.Tensor]) -> None:
        self.tensors = tensors
        self.of: ColdWeights | None = None


class ColdWeights:
    """The weights of one model that this process has open; they are found in their file.

    Models of one architecture take turns with one module, which shows the weights of the one that
    ran last. One thread calls it, which is also the one that runs the models.
    """

    def __init__(self, file: WeightsFile, weights: Mapping[str, torch.Tensor]) -> None:
        self._begin(
            file, _Shown({name: weights[name] for use in file.uses for name in use.weights})
        )
        self._show()

    def _begin(self, file: WeightsFile, shown: _Shown) -> None:
        self.file = file
        self._shown = shown
        self._at: dict[int, tuple[memoryview, int]] = {}  #: in memory; other uses are in the file
        self._views: dict[int, dict[str, torch.Tensor]] = {}
        self._arriving: ArrivingWeights | None = None

    def of_another(self, file: WeightsFile) -> ColdWeights:
        """Those of a model of this architecture, which takes turns with this one."""
        made = ColdWeights.__new__(ColdWeights)
        made._begin(file, self._shown)
        return made

    @property
    def nbytes(self) -> tuple[int, ...]:
        """The memory that each use takes."""
        return self.file.layout.extent_bytes

    def place(self, places: Mapping[int, int], memory: memoryview) -> None:
        """Have the model find some uses' weights in memory, at these offsets; they are there."""
        for index, at in places.items():
            self._at[index] = memory, at
            self.file.forget_use(index)
        self._moved(places)

    def leave(self, indices: Iterable[int]) -> None:
        """Have the model find these uses' weights in the file, whose pages it does not hold."""
        self._settle()
        left = list(indices)
        for index in left:
            self._at.pop(index, None)
            self.file.forget_use(index)
        with suppress(OSError, ValueError):  # the file is broken: the next batch says so
            self._moved(left)
        self._rest()

    def fetch(self, places: Mapping[int, int], memory: memoryview, done: OnArrived) -> None:
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
        if self._shown.of is not self:
            self._show()
        if self._arriving is None:
            return nullcontext()
        if self._arriving.over and not self._arriving.failure:
            self._arriving = None
            return nullcontext()
        return WeightWatcher(self._shown.tensors, partial(self._wait, self._arriving))

    def close(self) -> None:
        """Stop what is on its way."""
        if self._arriving is not None:
            self._arriving.end()
        self._at.clear()
        self._views.clear()
        if self._shown.of is self:
            self._shown.of = None  # else the two would hold each other, and the weights

    def _wait(self, arriving: ArrivingWeights, use: WeightUse) -> None:
        for index in {self.file.layout.use_of[name] for name in use.weights}:
            arriving.wait(index)

    def _show(self) -> None:
        before = self._shown.of
        self._find(range(len(self.file.uses)))
        if before is not None:
            before._rest()

    def _moved(self, indices: Iterable[int]) -> None:
        for index in indices:
            self._views.pop(index, None)
        if self._shown.of is self:
            self._find(indices)

    def _find(self, indices: Iterable[int]) -> None:
        """Show these uses' weights; until all are found, the module is nobody's."""
        tensors, self._shown.of = self._shown.tensors, None
        with torch.no_grad():
            for index in indices:
                if index not in self._views:
                    self._views[index] = self.file.tensors(index, *self._at.get(index, ()))
                for name, view in self._views[index].items():
                    tensors[name].data = view
        self._shown.of = self

    def _settle(self) -> None:
        if self._arriving is not None and self._arriving.over:
            self._arriving = None

    def _rest(self) -> None:
        """Hold nothing of a model that has no turn and nothing in memory."""
        self._settle()
        if self._shown.of is not self and not self._at and self._arriving is None:
            self._views.clear()
            self.file.rest()


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
