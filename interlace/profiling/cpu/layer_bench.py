"""Time one model's layers on cores: with weights in memory, in their file, and loaded as planned.

These are the inputs of a planner of cold starts (Jeong et al., EuroSys 2023, section 4.3.1). A copy
into memory that was touched before stands for a load. The mapping of a file in the page cache
stands for a GPU's direct host access. A layer begins at an operator that reads weights which none
before it read, and ends where the next layer begins. So it has its own time in every format.
"""

from __future__ import annotations

import mmap
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from functools import partial
from queue import SimpleQueue
from statistics import median
from time import perf_counter_ns
from typing import Final, Protocol

from interlace.core.loading import DISK_LINK, HostLinks, LoadStep, WeightPath
from interlace.core.profile import LayerProfile
from interlace.formats.page_cache import reading_ahead
from interlace.formats.runner import ComingWeights
from interlace.perf.cold_start import on_disk
from interlace.policy.cold_starts.frontier import frontier

#: Weights that the sample's execution did not read.
UNREAD: Final = "(not read)"
#: Times that a file is read from disk to be measured.
_DISK_TAKES: Final = 3
#: Less is nothing.
_LEAST_MS: Final = 1e-6
#: Operators before the first that reads weights.
BEFORE: Final = "(before)"


class AwaitedWeights(ComingWeights, Protocol):
    """Weights that are swapped while a model runs."""

    def arrivals(self) -> AbstractContextManager[object]: ...


class LayeredModel(Protocol):
    """A model that is opened, and can tell how long each layer takes."""

    @property
    def cold(self) -> AwaitedWeights: ...
    def run(self) -> None:
        """One execution on a row of its sample."""

    def resident_ms(self, memory: memoryview, takes: int) -> list[list[float]]:
        """Executions with all weights in memory, at the offsets that they have in their file.

        Times of what is before the first use, and from each use to the next.
        """

    def mapped_ms(self, takes: int) -> list[list[float]]:
        """The same with all weights left in the file, its pages found anew each time."""

    def from_disk_ms(self) -> list[float]:
        """One execution of these, the file read ahead from the disk meanwhile."""


class LayerBench:
    """``memory`` is as large as its file, and each weight has the same place in both."""

    def __init__(self, model: LayeredModel, takes: int) -> None:
        self._model = model
        self._cold = model.cold
        self._takes = takes
        self.memory = memoryview(mmap.mmap(-1, self._cold.file.nbytes))

    def layers(self) -> tuple[LayerProfile, ...]:
        """Every layer's bytes, its time to be copied, to run, and to run on the file."""
        file, run = self._cold.file, self._model.run
        self._copies_ms()  # touches the memory, and fills the page cache
        copies = [self._copies_ms() for _ in range(self._takes)]
        self._cold.leave(range(len(file.uses)))
        mapped = self._model.mapped_ms(self._takes)
        disk_copies, disk_mapped, disk_left_ms = self._from_disk_ms()
        self._cold.place(self.places(range(len(file.uses))), self.memory)
        run()
        resident = self._model.resident_ms(self.memory, self._takes)
        copy_ms, run_ms, host_ms = (
            [min(one) for one in zip(*rows, strict=True)] for rows in (copies, resident, mapped)
        )
        left_ms, loaded_ms, whole_ms = self._alternating_ms()
        scale = whole_ms / sum(run_ms)  # watching takes time, too
        added_ms = [max(0.0, there - here) for here, there in zip(run_ms, host_ms, strict=True)]
        added = max(0.0, left_ms - whole_ms) / max(sum(added_ms), _LEAST_MS)
        parts = [
            (here * scale, here * scale + more * added)
            for here, more in zip(run_ms, added_ms, strict=True)
        ]
        # What a load costs beside its copies: a thread, and each operator is watched.
        begin_ms = max(0.0, loaded_ms - whole_ms - sum(copy_ms))
        found = [LayerProfile(BEFORE, 0, begin_ms, *parts[0])]
        for use, nbytes, copied_ms, times in zip(
            file.uses, file.weights_bytes, copy_ms, [*parts[1:], (0.0, 0.0)], strict=False
        ):
            module = use.weights[0].rpartition(".")[0] or use.weights[0]
            name = module if use.operator else UNREAD
            found.append(LayerProfile(name, nbytes, copied_ms, *times, use.operator))
        if not disk_copies:
            return tuple(found)
        # The disk's waits are as long as a start was seen to take that is not watched.
        waits_ms = [
            max(0.0, there * scale - layer.run_host_ms)
            for layer, there in zip(found[1:], [*disk_mapped[1:], 0.0], strict=False)
        ]
        waited = max(0.0, disk_left_ms - sum(layer.run_host_ms for layer in found))
        waited /= max(sum(waits_ms), _LEAST_MS)
        return (
            found[0],
            *(
                replace(
                    layer, copy_disk_ms=copied_ms, run_disk_ms=layer.run_host_ms + waited * wait_ms
                )
                for layer, copied_ms, wait_ms in zip(found[1:], disk_copies, waits_ms, strict=True)
            ),
        )

    def _alternating_ms(self) -> list[float]:
        """Starts with everything left in the file, and nothing; and a warm run.

        In turns, so that what else the machine does is shared by what is compared.
        """
        everything = [LoadStep("", WeightPath.KEEP)]
        everything += [LoadStep("", WeightPath.COPY)] * len(self._cold.file.uses)
        rounds = []
        for _ in range(self._takes):
            times = [self.start_ms(()), self.start_ms(everything)]
            self._model.run()  # where pages are exchanged, the first run finds them
            rounds.append([*times, took_ms(self._model.run)])
        return [median(one) for one in zip(*rounds, strict=True)]

    def _from_disk_ms(self) -> tuple[list[float], list[float], float]:
        """The copies from disk, an execution by layer, and one that is not watched.

        Nothing where the file stays in the page cache.

        Medians: a disk's own cache makes some takes faster than it is.
        """
        if not self._drop():
            return [], [], 0.0
        copies, mapped, left_ms = [], [], []
        for _ in range(_DISK_TAKES):
            self._drop()
            with reading_ahead(self._cold.file.path, self._cold.file.tables):
                copies.append(self._copies_ms())
            self._drop()
            mapped.append(self._model.from_disk_ms())
            left_ms.append(self.start_ms((), cached=False))
        copy_ms, run_ms = (
            [median(one) for one in zip(*rows, strict=True)] for rows in (copies, mapped)
        )
        return copy_ms, run_ms, median(left_ms)

    def _drop(self) -> bool:
        """Have the file leave the page cache; false if it did not, as where others have it open."""
        file = self._cold.file
        self._cold.leave(range(len(file.uses)))
        file.forget()
        file.drop()
        return not any(map(file.cached, range(len(file.extents))))

    def as_started(
        self, layers: tuple[LayerProfile, ...]
    ) -> tuple[tuple[LayerProfile, ...], float]:
        """Return layers corrected by measured cold starts, and the planned cold start's time in ms.

        The planned load and one that leaves everything in the file take turns, with the file in the
        page cache, then on disk only. If the plan's smallest gain of all turns is below the
        prediction, the difference is added as the cost of beginning a load. So no load is begun
        that once ended later than without it. From disk the median gain counts instead: a disk may
        take twice as long for a file as it did a moment ago.
        """
        links, first = HostLinks(takes_cores=True), layers[0]
        missing_ms, planned_ms, left_ms = self._starts(layers, links, self._takes)
        first = replace(first, copy_ms=first.copy_ms + missing_ms)
        brought = frontier((first, *layers[1:]), links).brought
        if disk := on_disk(layers, takes_cores=True):
            missing_disk_ms, _, _ = self._starts(disk, DISK_LINK, _DISK_TAKES)
            if missing_disk_ms:
                first = replace(first, copy_disk_ms=disk[0].copy_ms + missing_disk_ms)
        return (first, *layers[1:]), planned_ms if brought else left_ms

    def _starts(
        self, layers: Sequence[LayerProfile], links: HostLinks, takes: int
    ) -> tuple[float, float, float]:
        """Return by how many ms the gain of these layers' plan falls short of the prediction.

        Then the time that it took in ms, and the time with everything left in the file.
        """
        plan, cached = frontier(layers, links), links.takes_cores
        rounds = [
            (self.start_ms(plan.steps, cached), self.start_ms((), cached)) for _ in range(takes)
        ]
        gains_ms = sum(layer.run_host_ms for layer in layers) - plan.end_ms
        surely = min if cached else median
        gained_ms = surely(left_ms - planned_ms for planned_ms, left_ms in rounds)
        planned_ms, left_ms = (median(one) for one in zip(*rounds, strict=True))
        return max(0.0, gains_ms - gained_ms) if plan.brought else 0.0, planned_ms, left_ms

    def start_ms(
        self,
        steps: Sequence[LoadStep],
        cached: bool = True,
        before: Callable[[], object] | None = None,
        overlapped: bool = True,
    ) -> float:
        """A cold start of these steps, with the file in the page cache or on disk only.

        Layers run as they come (``overlapped``), or once all have come. It follows a run on the
        file, so that the processor's caches hold of the weights what they do before a warm run,
        whatever was started last; or what they do after ``before``.

        Raises:
            OSError: the file cannot be read.
        """
        cold = self._cold
        if cached:
            cold.leave(range(len(cold.file.uses)))
            (before or self._model.run)()
            cold.file.forget()
        else:
            self._drop()
        copied = [place for place, step in enumerate(steps[1:]) if step.via is WeightPath.COPY]
        ended: SimpleQueue[str] = SimpleQueue()

        def start() -> None:
            if copied:
                cold.fetch(self.places(copied), self.memory, ended.put)
                if not overlapped:
                    ended.put(ended.get())  # all have come
            with cold.arrivals():
                self._model.run()

        with nullcontext() if cached else reading_ahead(cold.file.path, cold.file.tables):
            taken_ms = took_ms(start)
        if copied and (failure := ended.get()):
            raise OSError(failure)
        return taken_ms

    def places(self, indices: Iterable[int]) -> dict[int, int]:
        """Where those uses' weights lie in memory."""
        return {index: self._cold.file.extents[index].begin for index in indices}

    def _copies_ms(self) -> list[float]:
        file = self._cold.file
        return [
            took_ms(partial(file.read, index, self.memory, extent.begin))
            for index, extent in enumerate(file.extents)
        ]


def took_ms(run: Callable[[], object]) -> float:
    """How long a call takes."""
    began = perf_counter_ns()
    run()
    return (perf_counter_ns() - began) / 1e6
