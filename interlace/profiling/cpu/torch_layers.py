"""Times of a torch model's layers: an operator that reads new weights begins one."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import pairwise
from time import perf_counter_ns

import torch

from interlace.core.model import Model
from interlace.formats import open_torch
from interlace.formats.cold_weights import ColdWeights, WeightWatcher
from interlace.formats.page_cache import reading_ahead
from interlace.formats.runner import WARM_RUNS
from interlace.formats.torch_runner import sample_of
from interlace.formats.torch_sharing import share_weights


@dataclass(frozen=True, slots=True)
class TorchLayers:
    """A model of a torch format; to be used in ``torch.inference_mode``."""

    _weights: Mapping[str, torch.Tensor]
    cold: ColdWeights
    run: Callable[[], None]

    @classmethod
    def open(cls, model: Model, threads: int, weights_dir: str | None) -> TorchLayers:
        """Open a model and run it until it is as fast as it gets.

        Raises:
            RepositoryError: torch does not run its format, or it does not open.
            OSError: no room for its weights in ``weights_dir``.
        """
        torch.set_num_threads(threads)
        opened = open_torch(model)
        values = sample_of(opened, model)

        def run() -> None:
            opened.call(values)

        shared = share_weights(opened.tensors, model, weights_dir, run)
        if shared.cold is None:
            raise OSError(*shared.warnings or ("no folder for its weights",))
        for _ in range(WARM_RUNS):
            run()
        return cls(opened.tensors, shared.cold, run)

    def resident_ms(self, memory: memoryview, takes: int) -> list[list[float]]:
        return [self._parts_ms() for _ in range(takes)]

    def mapped_ms(self, takes: int) -> list[list[float]]:
        found = []
        for _ in range(takes):
            self.cold.file.forget()
            found.append(self._parts_ms())
        return found

    def from_disk_ms(self) -> list[float]:
        with reading_ahead(self.cold.file.path, self.cold.file.tables):
            return self._parts_ms()

    def _parts_ms(self) -> list[float]:
        stamps = [perf_counter_ns()]
        with WeightWatcher(self._weights, lambda use: stamps.append(perf_counter_ns())):
            self.run()
        stamps.append(perf_counter_ns())
        return [(end - begin) / 1e6 for begin, end in pairwise(stamps)]
