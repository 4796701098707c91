"""Times of an ONNX model's layers: a node that reads new weights begins one.

onnxruntime tells the time of each node in a file, once a session: so sessions are opened for it.
"""

from __future__ import annotations

import json
from bisect import bisect_right
from collections.abc import Callable
from contextlib import AbstractContextManager, closing, nullcontext
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from interlace.core.model import Model
from interlace.formats.arrays import sample_inputs
from interlace.formats.onnx import OnnxRunner, open_runner
from interlace.formats.page_cache import reading_ahead
from interlace.formats.runner import WARM_RUNS
from interlace.formats.session_weights import SessionWeights


class OnnxLayers:
    """An ONNX model whose weights can be swapped.

    Raises:
        RepositoryError: it does not open.
        OSError: its weights cannot be swapped, with the reason.
    """

    def __init__(self, model: Model, threads: int, weights_dir: str | None) -> None:
        self._open = partial(open_runner, model, threads, weights_dir)
        self._runner: OnnxRunner = self._open()
        if self._runner.cold is None:
            raise OSError(*self._runner.warnings or ("it has no weights to share",))
        self.cold: SessionWeights = self._runner.cold
        stated = model.signature.inputs and model.signature.outputs
        signature = model.signature if stated else self._runner.signature
        self.inputs = sample_inputs(model, signature, 1)
        for _ in range(WARM_RUNS):
            self.run()

    def run(self) -> None:
        self._runner.run(self.inputs)

    def resident_ms(self, memory: memoryview, takes: int) -> list[list[float]]:
        extents = self.cold.file.extents
        places = {index: extent.begin for index, extent in enumerate(extents)}

        def ready(cold: SessionWeights) -> None:
            cold.place(places, memory)

        return self._told_ms(ready, lambda cold: nullcontext(), takes)

    def mapped_ms(self, takes: int) -> list[list[float]]:
        def again(cold: SessionWeights) -> AbstractContextManager[None]:
            cold.leave(range(len(cold.file.uses)))
            return nullcontext()

        return self._told_ms(lambda cold: None, again, takes)

    def from_disk_ms(self) -> list[float]:
        def again(cold: SessionWeights) -> AbstractContextManager[None]:
            cold.leave(range(len(cold.file.uses)))
            cold.file.drop()
            return reading_ahead(cold.file.path, cold.file.tables)

        (parts_ms,) = self._told_ms(lambda cold: None, again, 1)
        return parts_ms

    def _told_ms(
        self,
        ready: Callable[[SessionWeights], None],
        before: Callable[[SessionWeights], AbstractContextManager[None]],
        takes: int,
    ) -> list[list[float]]:
        with TemporaryDirectory() as folder, closing(self._open(f"{folder}/nodes")) as runner:
            cold = runner.cold
            assert cold is not None
            ready(cold)
            for _ in range(WARM_RUNS):
                runner.run(self.inputs)
            for _ in range(takes):
                with before(cold):
                    runner.run(self.inputs)
            events = json.loads(Path(runner.end_profiling()).read_bytes())
        return [self._by_use_ms(nodes) for nodes in _runs(events)[-takes:]]

    def _by_use_ms(self, nodes: list[tuple[int, float]]) -> list[float]:
        readers = sorted(zip(self.cold.file.nodes, range(1, 1 << 30), strict=False))
        first_nodes = [node for node, _ in readers]
        parts_ms = [0.0] * (1 + len(readers))
        for node, node_ms in nodes:
            place = bisect_right(first_nodes, node)
            parts_ms[readers[place - 1][1] if place else 0] += node_ms
        return parts_ms


def _runs(events: list[dict[str, Any]]) -> list[list[tuple[int, float]]]:
    """Of each run its nodes and their times in ms, those within others left out."""
    runs: list[list[tuple[int, float]]] = []
    nodes: list[tuple[int, int, int]] = []
    for event in events:
        if event["name"] == "model_run":
            runs.append([(node, taken / 1e3) for _, taken, node in _outer(nodes)])
            nodes = []
        elif event["cat"] == "Node" and event["name"].endswith("_kernel_time"):
            nodes.append((event["ts"], event["dur"], int(event["args"]["node_index"])))
    return runs


def _outer(nodes: list[tuple[int, int, int]]) -> list[tuple[int, int, int]]:
    found: list[tuple[int, int, int]] = []
    for node in sorted(nodes, key=lambda one: (one[0], -one[1])):
        if not found or node[0] >= found[-1][0] + found[-1][1]:
            found.append(node)
    return found
