"""The variant that a model is served in: tried on the GPU, one after the other."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import torch

from interlace.core.model import Model
from interlace.device.cuda.backend.base import CudaBackend
from interlace.device.cuda.backend.tensors import sample_dims, sample_inputs
from interlace.device.cuda.driver.kernels import cached_bytes
from interlace.device.cuda.graphs.program import Dims
from interlace.device.cuda.lanes import CaptureStream, Stopwatch
from interlace.device.cuda.memory.weights_memory import WeightsMemory
from interlace.device.cuda.models.opening import PortableModel
from interlace.device.cuda.models.precision import (
    ModelVariant,
    Outputs,
    VariantResult,
    VariantTrial,
    candidate_variants,
    compare_variants,
    fastest,
    is_sticky,
)
from interlace.device.cuda.models.swapped_weights import SwappedWeights
from interlace.device.cuda.models.weights import DeviceWeights, WeightsHandle, lay_out

#: One of each kind of made-up inputs.
_SEEDS: Final = (0, 1)


def place_weights(
    model: PortableModel, variant: ModelVariant, backend: CudaBackend, stream: int
) -> DeviceWeights:
    """The model's weights on the GPU in a variant, and the model on them.

    Raises:
        MemoryError: what is needed and what there is.
    """
    weights = DeviceWeights.allocate(backend.driver, lay_out(model.originals, variant, model.exact))
    try:
        with backend.torch_stream(stream):
            weights.fill(model.originals, model.device)
        backend.driver.synchronize(stream)
        model.become(variant, weights)
    except BaseException:
        weights.close()
        raise
    return weights


def borrow_weights(
    model: PortableModel, lent: WeightsHandle, backend: CudaBackend
) -> DeviceWeights:
    """The model on weights that another process has on this GPU, in the variant chosen there.

    Raises:
        ValueError: they are not this model's.
        CudaError: that process let go of them, or the platform has no CUDA IPC.
    """
    layout = lay_out(model.originals, lent.variant, model.exact)
    weights = DeviceWeights.open(backend.driver, layout, lent)
    model.become(lent.variant, weights)
    return weights


def swapped_weights(
    model: PortableModel,
    variant: ModelVariant,
    backend: CudaBackend,
    stream: int,
    memory: WeightsMemory,
    dims: Dims,
) -> SwappedWeights:
    """Place a model's weights on the host, to be swapped; layers are those that a row runs.

    The row has ``dims``. The model is not compiled: a compiled one has no layers.

    Raises:
        MemoryError: what is needed and what there is.
        OSError, CudaError: memory of the host or the GPU is out, or the GPU failed.
        ValueError: its layers cannot be told apart.
    """
    placed = place_weights(model, variant._replace(compiled=False), backend, stream)
    try:
        with backend.torch_stream(stream):
            one = sample_inputs(model, dims, 1)
        return SwappedWeights(model, memory, backend, stream, lambda: model.outputs(one))
    finally:
        placed.close()


class VariantChooser:
    """Tries variants on a lane. ``rows`` is the batch that is timed."""

    def __init__(
        self,
        described: Model,
        model: PortableModel,
        backend: CudaBackend,
        stream: CaptureStream,
        rows: int,
    ) -> None:
        self._described = described
        self._model = model
        self._backend = backend
        self._stream = stream
        self._rows = rows
        self._untimed = False
        self._dims = sample_dims(described, model.signature)

    def choose(
        self, stopwatch: Stopwatch | None, folder: Path | None = None
    ) -> tuple[ModelVariant, Sequence[VariantResult]]:
        """The fastest variant that is close enough to the first one, and what was found.

        Without a stopwatch it is the first; a single one is taken without being tried. So is the
        one that was chosen before, if ``folder`` has it; else the choice is written there.
        """
        found = candidate_variants(self._described.terms, self._model.has_convolutions)
        if stopwatch is None or len(found) == 1:
            return found[0], ()
        figures: list[VariantResult] = []

        def tried() -> bytes:
            figures.extend(
                compare_variants(found, lambda variant: self._attempt(variant, stopwatch))
            )
            return str(fastest(figures).variant).encode()

        name = (
            tried()
            if folder is None
            else cached_bytes(folder, "variant", self._circumstances, "", tried)
        )
        known = {str(variant).encode(): variant for variant in found}
        return known[name if name in known else tried()], figures

    @property
    def _circumstances(self) -> str:
        """What the choice depends on."""
        model, board = self._described, self._backend.driver.board
        precision, compiled = model.terms.precision.value, model.terms.compiled
        about = (model.name, model.version, model.digest, precision, compiled)
        return repr((*about, board.name, board.capability, torch.__version__))

    def _attempt(self, variant: ModelVariant, stopwatch: Stopwatch) -> VariantTrial:
        weights = place_weights(self._model, variant, self._backend, self._stream.handle)
        try:
            outputs = [self._outputs(seed) for seed in _SEEDS]
            return VariantTrial(outputs, self._time_ms(stopwatch))
        finally:
            self._backend.driver.synchronize(self._stream.handle)
            weights.close()

    def _outputs(self, seed: int) -> Outputs:
        with self._backend.torch_stream(self._stream.handle), torch.inference_mode():
            values = self._sample(seed)
            return [tensor.cpu().clone() for tensor in self._model.outputs(values)]

    def _time_ms(self, stopwatch: Stopwatch) -> float:
        with self._backend.torch_stream(self._stream.handle), torch.inference_mode():
            values = self._sample(0)

        def run() -> object:
            return self._model.outputs(values)

        if self._untimed:
            return math.inf
        try:
            self._stream.rehearse(run)
            return stopwatch(self._backend, self._stream, run)
        except Exception as error:
            if isinstance(error, MemoryError) or is_sticky(error):
                raise
            self._untimed = True  # one failed capture says it for all
            return math.inf

    def _sample(self, seed: int) -> dict[str, torch.Tensor]:
        return sample_inputs(self._model, self._dims, self._rows, seed)
