"""The process that takes models apart on a GPU: their layers, and readers beside them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from pkgutil import resolve_name

import msgspec
import torch

from interlace.core.model import Model
from interlace.core.profile import LayerProfile
from interlace.device.cuda.backend.base import CudaBackend
from interlace.device.cuda.backend.tensors import most_rows, sample_dims, sample_inputs
from interlace.device.cuda.backend.trials import library_threads
from interlace.device.cuda.graphs.capture import CapturedGraph
from interlace.device.cuda.lanes import Lane, Lanes, between_events
from interlace.device.cuda.models.opening import PortableModel, open_portable
from interlace.device.cuda.models.variant_choice import VariantChooser, place_weights
from interlace.device.cuda.models.weights import DeviceWeights
from interlace.device.cuda.worker.context import made_backend, stopwatch_of
from interlace.formats.runner import WARM_RUNS
from interlace.profiling.cuda.layers import GraphTimer, measure_layers
from interlace.profiling.cuda.readers import ReaderKernels, ReaderLane, strains
from interlace.profiling.extra_metrics import (
    BatchStrains,
    GpuTask,
    PartFindings,
    ReaderPlacement,
    write_findings,
)

Execute = Callable[[], object]


@dataclass(frozen=True, slots=True)
class PlacedModel:
    """A model on its weights, ready to run on one lane."""

    backend: CudaBackend
    lane: Lane
    model: PortableModel
    described: Model

    def run(self, rows: int) -> Execute:
        """One execution of a batch of made-up inputs, on torch's current stream."""
        dims = sample_dims(self.described, self.model.signature)
        with self.backend.torch_stream(self.lane.stream):
            values = sample_inputs(self.model, dims, rows)
        return lambda: self.model.outputs(values)


def examine(task: GpuTask, model: Model, backend: CudaBackend, lanes: Lanes) -> PartFindings:
    """Everything the task asks of one model."""
    layers: tuple[LayerProfile, ...] = ()
    if task.layers:
        with placed_model(backend, lanes, model, 100) as one:
            timer = GraphTimer(backend, one.lane, flush_bytes=task.flush_bytes)
            with backend.torch_stream(one.lane.stream):
                layers = measure_layers(backend, one.lane, timer, one.run(1))
    found: list[BatchStrains] = []
    if task.places:
        with closing(ReaderKernels(backend)) as made:
            with carved(lanes, "whole", 100) as whole:
                peaks = made.peaks(whole)
            for place in task.places:
                found += _strained(place, model, backend, lanes, made, peaks)
    return PartFindings(model.key, layers, strains=tuple(found))


def _strained(
    place: ReaderPlacement,
    model: Model,
    backend: CudaBackend,
    lanes: Lanes,
    made: ReaderKernels,
    peaks: Mapping[str, float],
) -> Iterator[BatchStrains]:
    """The smallest and the largest batch beside each reader."""
    with placed_model(backend, lanes, model, place.share_pct) as one:
        for rows in sorted({1, most_rows(one.model.signature)}):
            with executed(one, rows) as once_ms:
                seen = [
                    strain
                    for beside in apart(lanes, one.lane, place.beside_pct)
                    for strain in strains(made, peaks, beside, once_ms)
                ]
            yield BatchStrains(rows, place.share_pct, tuple(seen))


@contextmanager
def placed_model(
    backend: CudaBackend, lanes: Lanes, described: Model, share_pct: int
) -> Iterator[PlacedModel]:
    """The model in the variant that it is served in, but never compiled: compiled it has no parts.

    Raises:
        MemoryError: what is needed and what there is.
    """
    with ExitStack() as steps:
        lane = steps.enter_context(carved(lanes, "measured", share_pct))
        stream = lane.captures_on(backend)
        steps.callback(stream.leave)
        portable = open_portable(described, backend.torch_device)
        rows = most_rows(portable.signature)

        def placed() -> DeviceWeights:
            variant, _ = VariantChooser(described, portable, backend, stream, rows).choose(
                stopwatch_of(backend)
            )
            return place_weights(portable, variant._replace(compiled=False), backend, lane.stream)

        weights = backend.threads.run(lane.green, placed)
        steps.callback(weights.close)
        steps.callback(portable.close)
        portable.settle()
        yield PlacedModel(backend, lane, portable, described)
        backend.driver.synchronize(lane.stream)


@contextmanager
def executed(one: PlacedModel, rows: int) -> Iterator[Callable[[], float]]:
    """A function that runs a batch once, as a graph, and returns its ms."""
    driver, stream = one.backend.driver, one.lane.stream
    kept: list[object] = []

    def recorded() -> CapturedGraph:
        run = one.run(rows)
        with one.backend.torch_stream(stream), torch.inference_mode():
            for _ in range(WARM_RUNS):
                run()
        driver.synchronize(stream)

        def body() -> None:
            kept[:] = [run()]

        return one.backend.capturer.capture(stream, None, body)

    with ExitStack() as steps:
        captured = one.backend.threads.run(one.lane.green, recorded)
        steps.callback(captured.close)
        taken_ms = steps.enter_context(between_events(driver, stream))

        def once_ms() -> float:
            return taken_ms(lambda: driver.launch_graph(captured.executable, stream))

        once_ms()  # the first launch uploads the graph
        yield once_ms


def apart(lanes: Lanes, own: Lane, shares_pct: tuple[int, ...]) -> Iterator[ReaderLane]:
    """Lanes for readers, one at a time, those that would share SMs with the model left out."""
    for share_pct in shares_pct:
        with carved(lanes, "reader", share_pct) as lane:
            if not set(lane.units) & set(own.units):
                yield ReaderLane(lane, share_pct)


@contextmanager
def carved(lanes: Lanes, name: str, share_pct: int) -> Iterator[Lane]:
    """A lane for a while."""
    lane = lanes.carve(name, share_pct)
    try:
        yield lane
    finally:
        lanes.release(name)


def main(task_file: str, findings_file: str) -> None:
    """Measure every model of the task; each model's line is written when it is done."""
    task = msgspec.json.decode(Path(task_file).read_bytes(), type=GpuTask)
    with ExitStack() as steps:
        backend = made_backend(task.backend, task.gpu, steps)
        lanes: Lanes = resolve_name(task.lanes)(backend.driver)
        steps.callback(lanes.close)
        threads = library_threads(task.handle_context, backend, lanes, print)
        steps.callback(threads.close)
        backend = backend._replace(threads=threads)
        whole = write_findings(
            findings_file, task.models, lambda model: examine(task, model, backend, lanes)
        )
        if not whole:
            steps.pop_all()  # nothing can be given back to a GPU that failed
