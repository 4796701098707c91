"""Layer by layer on cores: time to copy the weights, to run, and to run on a file's mapping.

What a planner of cold starts needs (Jeong et al., EuroSys 2023, section 4.3.1), with a copy into
memory that was touched before for a load, and the mapping of a file in the page cache for what a
GPU's direct host access is. A layer begins where an operator reads weights that none before it
read, and ends where the next one begins; so it has a time of its own in every torch format.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable
from contextlib import closing
from functools import partial
from itertools import pairwise
from pathlib import Path
from time import perf_counter_ns
from typing import Final

import torch

from interlace.core.loading import HostLinks, WeightPath
from interlace.core.model import Model
from interlace.core.profile import LayerProfile
from interlace.formats import open_torch
from interlace.formats.cold_weights import ColdWeights, weight_uses
from interlace.formats.runner import WARM_RUNS
from interlace.formats.samples import sample_values
from interlace.formats.tensor_file import storable
from interlace.formats.weight_uses import WeightWatcher
from interlace.policy.cold_starts.frontier import frontier
from interlace.profiling.findings import LayerFindings

#: Weights that the sample's execution did not read.
UNREAD: Final = "(not read)"
#: Operators before the first that reads weights.
BEFORE: Final = "(before)"


def measure_layers(model: Model, threads: int, folder: Path, takes: int) -> LayerFindings:
    """The layers of a model for one row of its sample, in the order of execution.

    Run times add up to that of the whole model, which is measured without watching it. Then the
    cold start that is planned from them is made.

    Raises:
        RepositoryError: torch does not run its format, or it does not open.
        OSError: no room for its weights in ``folder``.
        MemoryError: no room for them twice in memory.
    """
    torch.set_num_threads(threads)
    opened = open_torch(model)
    values = sample_values(model.signature.inputs, model, model.signature.batched, 0)

    def run() -> None:
        opened.call(values)

    path = folder / f"{model.digest}.layers"
    with torch.inference_mode():
        for _ in range(WARM_RUNS):
            run()
        weights = {name: one for name, one in opened.tensors.items() if storable(one)}
        try:
            with closing(ColdWeights(path, weights, weight_uses(weights, run))) as cold:
                bench = LayerBench(weights, cold, run, takes)
                layers = bench.layers()
                return LayerFindings(layers, bench.cold_ms(layers))
        finally:
            path.unlink(missing_ok=True)


class LayerBench:
    """One model run with its weights in memory, in the mapping, and brought as planned."""

    def __init__(
        self,
        weights: dict[str, torch.Tensor],
        cold: ColdWeights,
        run: Callable[[], None],
        takes: int,
    ) -> None:
        self._weights = weights
        self._cold = cold
        self._run = run
        self._takes = takes

    def layers(self) -> tuple[LayerProfile, ...]:
        uses = self._cold.uses
        self._copies_ms()  # touches the memory, and fills the page cache
        copies = [self._copies_ms() for _ in range(self._takes)]
        self._cold.place([False] * len(uses))
        mapped = [self._fresh_ms() for _ in range(self._takes)]
        self._cold.place([True] * len(uses))
        self._run()
        resident = [self._parts_ms() for _ in range(self._takes)]
        whole_ms = statistics.median(_took_ms(self._run) for _ in range(self._takes))
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
        for use, nbytes, copied_ms, times in zip(
            uses, self._cold.nbytes, copy_ms, [*parts[1:], (0.0, 0.0)], strict=False
        ):
            name = _module_of(use.weights[0]) if use.operator else UNREAD
            found.append(LayerProfile(name, nbytes, copied_ms, *times, use.operator))
        return tuple(found)

    def cold_ms(self, layers: tuple[LayerProfile, ...]) -> float:
        """A cold start as it would be planned, with the file in the page cache."""
        steps = frontier(layers, HostLinks(takes_cores=True)).steps[1:]
        copied = [step.via is WeightPath.COPY for step in steps]
        taken: list[float] = []
        for _ in range(self._takes):
            self._cold.forget()
            taken.append(_took_ms(lambda: self._cold.run(self._run, copied)))
        return statistics.median(taken)

    def _copies_ms(self) -> list[float]:
        indices = range(len(self._cold.uses))
        return [_took_ms(partial(self._cold.copy, index)) for index in indices]

    def _fresh_ms(self) -> list[float]:
        self._cold.forget()
        return self._parts_ms()

    def _parts_ms(self) -> list[float]:
        """Times before the first use, and from each use to the next."""
        stamps = [perf_counter_ns()]
        with WeightWatcher(self._weights, lambda use: stamps.append(perf_counter_ns())):
            self._run()
        stamps.append(perf_counter_ns())
        return [(end - begin) / 1e6 for begin, end in pairwise(stamps)]


def _took_ms(run: Callable[[], None]) -> float:
    began = perf_counter_ns()
    run()
    return (perf_counter_ns() - began) / 1e6


def _module_of(weight: str) -> str:
    return weight.rpartition(".")[0] or weight
