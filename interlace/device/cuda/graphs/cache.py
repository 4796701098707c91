"""The programs of one model on one lane: warmed, captured, and found by shape."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import ExitStack
from typing import Final

import torch

from interlace.core.errors import RepositoryError
from interlace.device.cuda.backend.base import CudaBackend
from interlace.device.cuda.backend.tensors import RunnableModel, most_rows, sample_inputs
from interlace.device.cuda.driver.api import CudaError
from interlace.device.cuda.graphs.program import (
    BatchProgram,
    DefaultedProgram,
    Dims,
    EagerProgram,
    GraphProgram,
    LaneContext,
    StaticInputs,
    input_slots,
    output_slots,
)
from interlace.device.cuda.lanes import CaptureStream, Lane
from interlace.device.cuda.models.precision import first_line, is_sticky
from interlace.formats.runner import WARM_RUNS
from interlace.perf.buckets import bucket_for

#: Shapes that run eagerly and are remembered on a lane; the oldest is forgotten.
_EAGER_MAX: Final = 64


class GraphCache:
    """Graphs by batch size for the shapes of ``dims``; everything else eagerly.

    ``graphs`` are added by the thread that captures, and used by the one that launches.
    """

    def __init__(self, context: LaneContext, model: RunnableModel, dims: Dims) -> None:
        self.graphs: tuple[GraphProgram, ...] = ()
        self.model = model
        self._context = context
        self._dims = dims
        self._inputs: StaticInputs | None = None
        self._eager: OrderedDict[object, EagerProgram] = OrderedDict()

    @property
    def buckets(self) -> tuple[int, ...]:
        return tuple(program.rows for program in self.graphs)

    @property
    def lane(self) -> Lane:
        return self._context.lane

    @property
    def capture_stream(self) -> CaptureStream:
        """Where its graphs are captured."""
        return self._context.capture_stream

    def capture(self, buckets: Sequence[int], undo: ExitStack) -> Sequence[GraphProgram]:
        """Graphs for the batch sizes that it has none for, to be added.

        The largest comes first: it sizes the lane's pool. ``undo`` destroys them.

        Raises:
            Exception: one cannot be captured, or memory is out; nothing is left of them then.
        """
        made: list[GraphProgram] = []
        with ExitStack() as begun:
            for rows in sorted(set(buckets) - set(self.buckets), reverse=True):
                made.append(GraphProgram(self._context, self.model, self._static(), rows))
                begun.callback(made[-1].close)
            undo.push(begun.pop_all())
        return made

    def add(self, made: Sequence[GraphProgram]) -> None:
        """Use these graphs from now on."""
        self.graphs = tuple(sorted((*self.graphs, *made), key=lambda program: program.rows))

    def program(self, rows: int, given: Mapping[str, tuple[int, ...]]) -> BatchProgram:
        """What runs ``rows`` rows of these inputs, named with the dims of one row."""
        place = bucket_for(self.buckets, rows)
        if place is None or any(self._dims.get(name) != dims for name, dims in given.items()):
            return self._eagerly(rows, given)
        program = self.graphs[place]
        if len(given) == len(program.inputs):
            return program
        assert self._inputs is not None
        fills = self._inputs.fills
        if any(one.name not in given and one.name not in fills for one in program.inputs):
            return self._eagerly(rows, given)
        return DefaultedProgram(program, frozenset(given), fills)

    def close(self) -> None:
        """Destroy everything; nothing runs. The context stays.

        A batch is known to have ended by a word that its graph writes, a moment before the driver
        has ended the graph: the lane's stream is waited for.
        """
        with ExitStack() as steps:
            if self._inputs is not None:
                steps.callback(self._inputs.close)
            for graph in self.graphs:
                steps.callback(graph.close)
            for eager in self._eager.values():
                steps.callback(eager.close)
            context = self._context
            steps.callback(context.backend.driver.synchronize, context.lane.stream)
        self.graphs, self._inputs = (), None
        self._eager.clear()

    def _static(self) -> StaticInputs:
        """The inputs' place, with contents that the model accepts."""
        if self._inputs is not None:
            return self._inputs
        model, backend, stream = (
            self.model,
            self._context.backend,
            self._context.capture_stream.handle,
        )
        signature, rows = model.signature, most_rows(model.signature)
        slots = input_slots(signature, self._dims)
        inputs = StaticInputs(backend.driver, slots, rows, model.defaults)
        self._inputs = inputs
        with backend.torch_stream(stream):
            sample = sample_inputs(model, self._dims, rows)
            inputs.write(sample, rows if signature.batched else None, model.device)
        backend.driver.synchronize(stream)
        return inputs

    def _eagerly(self, rows: int, given: Mapping[str, tuple[int, ...]]) -> EagerProgram:
        key = (rows, tuple(sorted(given.items())))
        known = self._eager.get(key)
        if known is not None:
            self._eager.move_to_end(key)
            return known
        context, model = self._context, self.model
        outputs = context.backend.threads.run(
            context.lane.green,
            lambda: output_slots(context.backend, context.lane.stream, model, rows, given),
        )
        program = EagerProgram(context, model, rows, given, outputs)
        self._eager[key] = program
        if len(self._eager) > _EAGER_MAX:
            self._eager.popitem(last=False)[1].close()
        return program


class GraphPreparation:
    """Readies one model, named by ``key``, at batch sizes of a lane.

    ``known`` sizes have been run in this process before, on whichever lane.
    """

    def __init__(
        self, backend: CudaBackend, key: str, dims: Dims, note: Callable[[str], None]
    ) -> None:
        self._backend = backend
        self._key = key
        self._dims = dims
        self._note = note

    def graphs(
        self, cache: GraphCache, buckets: Sequence[int], known: Collection[int], undo: ExitStack
    ) -> Sequence[GraphProgram]:
        """Graphs of the sizes that the lane has none for; what fails first is tried once more.

        Raises:
            Exception: one cannot be captured (``is_capture_error``), or cannot be run at all.
        """
        wanted = sorted(set(buckets) - set(cache.buckets), reverse=True)
        self._warm(cache.model, cache.capture_stream.handle, wanted, known)
        try:
            return cache.capture(wanted, undo)
        except Exception as error:
            if not is_capture_error(error):
                raise
            # Kernels are loaded when first launched. This lane may have others than those where
            # the model was warmed, and models may run others in a capture.
            self._note(f"{self._key} is captured again: {first_line(error)}")
        self._warm(cache.model, cache.capture_stream.handle, wanted, known)
        for rows in wanted:
            self._rehearse(cache, rows)
        return cache.capture(wanted, undo)

    def run_eagerly(
        self, cache: GraphCache, buckets: Sequence[int], known: Collection[int]
    ) -> bool:
        """Warm up the lane's stream: first runs are slow (empty memory cache, new session).

        False if there are no ``buckets``, or the model fails on the sample values.
        """
        try:
            self._warm(cache.model, cache.lane.stream, buckets, known)
        except Exception as error:  # made-up inputs may be nonsense to it; requests will show
            if is_sticky(error) or is_out_of_memory(error):
                raise
            self._note(f"{self._key} fails on made-up inputs: {first_line(error)}")
            return False
        return bool(buckets)

    def _warm(
        self, model: RunnableModel, stream: int, buckets: Sequence[int], known: Collection[int]
    ) -> None:
        """What happens once at each size that is new to the process, and once in each lane."""
        with self._backend.torch_stream(stream), torch.inference_mode():
            for rows in sorted(set(buckets), reverse=True):
                values = self._sample(model, rows)
                for _ in range(1 if rows in known else WARM_RUNS):
                    model.outputs(values)
        self._backend.driver.synchronize(stream)

    def _rehearse(self, cache: GraphCache, rows: int) -> None:
        model = cache.model
        with self._backend.torch_stream(cache.capture_stream.handle), torch.inference_mode():
            values = self._sample(model, rows)
        self._backend.driver.synchronize(cache.capture_stream.handle)
        cache.capture_stream.rehearse(lambda: model.outputs(values))

    def _sample(self, model: RunnableModel, rows: int) -> dict[str, torch.Tensor]:
        return sample_inputs(model, self._dims, rows)


def is_capture_error(error: Exception) -> bool:
    """Whether a model fails in a capture, where it may run eagerly; what else fails is final."""
    if isinstance(error, CudaError):
        return error.name.startswith("CUDA_ERROR_STREAM_CAPTURE")
    return not (is_out_of_memory(error) or isinstance(error, RepositoryError))


def is_out_of_memory(error: Exception) -> bool:
    """Of the driver or of torch: there is none left."""
    return isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError"
