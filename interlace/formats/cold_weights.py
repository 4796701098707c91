"""A model's weights in a file in the order of execution, and a cold start from it.

Memory of the file's layout, touched beforehand, takes the layers that a plan copies: a thread reads
them in order while the model runs. The others are read where they lie, in the file's mapping. Fresh
memory would cost fifteen times as much as the copy.
"""

from __future__ import annotations

import mmap
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from threading import Event, Thread

import torch

from interlace.formats.tensor_file import map_file, tensor_places, view, write_tensors
from interlace.formats.weight_uses import WeightUse, WeightWatcher


class ColdWeights:
    """The weights of one model that this process has open, off its memory and on it.

    ``uses`` are its weights in the order in which they are read; what none reads is in the last,
    whose operator is empty. The file is written to ``path``, which must not exist.
    """

    def __init__(
        self, path: Path, weights: Mapping[str, torch.Tensor], uses: Sequence[WeightUse]
    ) -> None:
        self.uses = tuple(uses)
        self._weights = weights
        write_tensors(path, {name: weights[name] for use in uses for name in use.weights})
        self._file = path.open("rb", buffering=0)
        self._mapped = map_file(path)
        self._arena = mmap.mmap(-1, len(self._mapped))
        places = tensor_places(path, self._mapped)
        self._in_file = {name: view(self._mapped, place) for name, place in places.items()}
        self._in_memory = {name: view(self._arena, place) for name, place in places.items()}
        begins = [min(places[name].begin for name in use.weights) for use in self.uses]
        self._extents = list(zip(begins, [*begins[1:], len(self._mapped)], strict=True))
        self.nbytes = [sum(places[name].nbytes for name in use.weights) for use in self.uses]

    def close(self) -> None:
        """Close the file; the memory goes with the last tensor on it."""
        self._file.close()

    def forget(self) -> None:
        """Have the mapping's pages found anew when they are next read; they stay in the cache."""
        self._mapped.madvise(mmap.MADV_DONTNEED)

    def spoil(self) -> None:
        """Fill the memory with what no weights are (NaN): to be sure that none is read early."""
        self._arena[:] = b"\xff" * len(self._arena)

    def place(self, copied: Sequence[bool]) -> None:
        """Have the model find the weights of some uses in memory, of the others in the file."""
        for use, in_memory in zip(self.uses, copied, strict=True):
            views = self._in_memory if in_memory else self._in_file
            for name in use.weights:
                self._weights[name].data = views[name]

    def copy(self, index: int) -> None:
        """Read one use's weights into memory.

        Raises:
            OSError: the file cannot be read to its end.
        """
        begin, end = self._extents[index]
        memory = memoryview(self._arena)
        while begin < end:
            count = os.preadv(self._file.fileno(), [memory[begin:end]], begin)
            if not count:
                raise OSError(f"{self._file.name}: it ends at {begin} bytes")
            begin += count

    def run(self, run: Callable[[], object], copied: Sequence[bool]) -> None:
        """A cold start: run the model once while the weights of some uses are copied.

        Raises:
            OSError: the file cannot be read; the model has not run to its end.
            Exception: whatever the model raises.
        """
        self.place(copied)
        wanted = [index for index, one in enumerate(copied) if one]
        with self._copying(wanted) as wait, WeightWatcher(self._weights, wait):
            run()

    @contextmanager
    def _copying(self, wanted: Sequence[int]) -> Iterator[Callable[[WeightUse], None]]:
        """Copies in another thread; what it yields waits for a use's weights."""
        there = {index: Event() for index in wanted}
        failures: list[OSError] = []
        stopped = Event()

        def copy_all() -> None:
            for index, event in there.items():
                if not stopped.is_set() and not failures:
                    try:
                        self.copy(index)
                    except OSError as error:
                        failures.append(error)
                event.set()

        first = {use.weights[0]: index for index, use in enumerate(self.uses)}
        by_name = {name: first[use.weights[0]] for use in self.uses for name in use.weights}

        def wait(use: WeightUse) -> None:
            for index in {by_name[name] for name in use.weights}:
                if index in there:
                    there[index].wait()
                    if failures:
                        raise failures[0]

        thread = Thread(target=copy_all, name="weights", daemon=True)
        thread.start()
        try:
            yield wait
        except BaseException:
            stopped.set()
            raise
        finally:
            thread.join()


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
