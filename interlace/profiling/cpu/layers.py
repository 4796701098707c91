"""Layer by layer on cores: time to copy the weights, to run, and to run on a file's mapping.

What a planner of cold starts needs (Jeong et al., EuroSys 2023, section 4.3.1), with a copy into
memory that was touched before for a load, and the mapping of a file in the page cache for what a
GPU's direct host access is. A layer begins where an operator reads weights that none before it
read, and ends where the next one begins; so it has a time of its own in every torch format.
"""

from __future__ import annotations

import mmap
import os
import statistics
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from time import perf_counter_ns
from typing import Final

import torch

from interlace.core.model import Model
from interlace.core.profile import LayerProfile
from interlace.formats import open_torch
from interlace.formats.runner import WARM_RUNS
from interlace.formats.samples import sample_values
from interlace.formats.tensor_file import (
    TensorPlace,
    map_file,
    storable,
    tensor_places,
    view,
    write_tensors,
)
from interlace.formats.weight_uses import WeightUse, WeightWatcher

#: Weights that the sample's execution did not read.
UNREAD: Final = "(not read)"
#: Operators before the first that reads weights.
BEFORE: Final = "(before)"


def measure_layers(
    model: Model, threads: int, folder: Path, takes: int
) -> tuple[LayerProfile, ...]:
    """The layers of a model for one row of its sample, in the order of execution.

    Run times add up to that of the whole model, which is measured without watching it.

    Raises:
        RepositoryError: torch does not run its format, or it does not open.
        OSError: no room for its weights in ``folder``.
        MemoryError: no room for them twice in memory.
    """
    torch.set_num_threads(threads)
    opened = open_torch(model)
    specs = model.signature.inputs
    values = sample_values(specs, model, model.signature.batched, 0)

    def run() -> None:
        opened.call(values)

    with torch.inference_mode():
        for _ in range(WARM_RUNS):
            run()
        weights = {name: one for name, one in opened.tensors.items() if storable(one)}
        uses = _uses(weights, run)
        with _laid_out(folder / f"{model.digest}.layers", weights, uses) as bench:
            return bench.layers(run, takes)


def _uses(weights: Mapping[str, torch.Tensor], run: Callable[[], None]) -> list[WeightUse]:
    found: list[WeightUse] = []
    with WeightWatcher(weights, found.append):
        run()
    read = {name for use in found for name in use.weights}
    left = tuple(name for name in weights if name not in read)
    return [*found, WeightUse("", left)] if left else found


@contextmanager
def _laid_out(
    path: Path, weights: Mapping[str, torch.Tensor], uses: list[WeightUse]
) -> Iterator[_LayerBench]:
    """The weights in a file in the order of ``uses``, with room for a copy of it in memory."""
    write_tensors(path, {name: weights[name] for use in uses for name in use.weights})
    try:
        yield _LayerBench(path, weights, uses)
    finally:
        path.unlink()


class _LayerBench:
    """A model's weights in a file, mapped, and memory of the same layout that was touched."""

    def __init__(
        self, path: Path, weights: Mapping[str, torch.Tensor], uses: list[WeightUse]
    ) -> None:
        self._path = path
        self._weights = weights
        self._uses = uses
        self._mapped = map_file(path)
        self._arena = mmap.mmap(-1, len(self._mapped))
        self._places = tensor_places(path, self._mapped)

    def layers(self, run: Callable[[], None], takes: int) -> tuple[LayerProfile, ...]:
        self._copies_ms()  # touches the arena, and fills the page cache
        copies = [self._copies_ms() for _ in range(takes)]
        self._point(self._mapped)
        mapped = [self._fresh_ms(run) for _ in range(takes)]
        self._point(self._arena)
        run()
        resident = [self._parts_ms(run) for _ in range(takes)]
        whole_ms = statistics.median(_took_ms(run) for _ in range(takes))
        copy_ms, run_ms, host_ms = (
            [statistics.median(one) for one in zip(*rows, strict=True)]
            for rows in (copies, resident, mapped)
        )
        scale = whole_ms / sum(run_ms)  # watching takes time, too
        parts = [
            (here * scale, here * scale + max(0.0, there - here))
            for here, there in zip(run_ms, host_ms, strict=True)
        ]
        found = [LayerProfile(BEFORE, 0, 0.0, *parts[0])]
        for use, copied_ms, times in zip(
            self._uses, copy_ms, [*parts[1:], (0.0, 0.0)], strict=False
        ):
            nbytes = sum(self._places[name].nbytes for name in use.weights)
            name = _module_of(use.weights[0]) if use.operator else UNREAD
            found.append(LayerProfile(name, nbytes, copied_ms, *times, use.operator))
        return tuple(found)

    def _point(self, memory: mmap.mmap) -> None:
        for name, tensor in self._weights.items():
            tensor.data = view(memory, self._places[name])

    def _copies_ms(self) -> list[float]:
        taken: list[float] = []
        arena = memoryview(self._arena)
        with self._path.open("rb", buffering=0) as file:
            for use in self._uses:
                began = perf_counter_ns()
                begin, end = _extent([self._places[name] for name in use.weights])
                while begin < end:
                    begin += os.preadv(file.fileno(), [arena[begin:end]], begin)
                taken.append((perf_counter_ns() - began) / 1e6)
        return taken

    def _fresh_ms(self, run: Callable[[], None]) -> list[float]:
        self._mapped.madvise(mmap.MADV_DONTNEED)
        return self._parts_ms(run)

    def _parts_ms(self, run: Callable[[], None]) -> list[float]:
        """Times before the first use, and from each use to the next."""
        stamps = [perf_counter_ns()]
        with WeightWatcher(self._weights, lambda use: stamps.append(perf_counter_ns())):
            run()
        stamps.append(perf_counter_ns())
        return [(end - begin) / 1e6 for begin, end in pairwise(stamps)]


def _took_ms(run: Callable[[], None]) -> float:
    began = perf_counter_ns()
    run()
    return (perf_counter_ns() - began) / 1e6


def _extent(places: list[TensorPlace]) -> tuple[int, int]:
    return min(one.begin for one in places), max(one.begin + one.nbytes for one in places)


def _module_of(weight: str) -> str:
    return weight.rpartition(".")[0] or weight
