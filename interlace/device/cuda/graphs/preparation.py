"""A model run on made-up inputs before it serves: warmed, captured, and captured again."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from contextlib import ExitStack

import torch

from interlace.core.errors import RepositoryError
from interlace.device.cuda.backend.base import CudaBackend, on_stream
from interlace.device.cuda.driver.errors import CudaError
from interlace.device.cuda.graphs.cache import GraphCache
from interlace.device.cuda.graphs.program import Dims, GraphProgram, RunnableModel
from interlace.device.cuda.models.precision import first_line, is_sticky
from interlace.device.cuda.models.samples import sample_inputs
from interlace.formats.runner import WARM_RUNS


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
        """What comes first costs most, also on a stream: a cache without memory, a new session.

        False if the model fails on the sample values.
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
        with on_stream(self._backend, stream), torch.inference_mode():
            for rows in sorted(set(buckets), reverse=True):
                values = self._sample(model, rows)
                for _ in range(1 if rows in known else WARM_RUNS):
                    model.outputs(values)
        self._backend.driver.synchronize(stream)

    def _rehearse(self, cache: GraphCache, rows: int) -> None:
        model = cache.model
        with on_stream(self._backend, cache.capture_stream.handle), torch.inference_mode():
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
