"""A model without a graph: its kernels are launched one by one, on the lane's stream."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import torch

from interlace.device.cuda.backend.base import CudaBackend, on_stream
from interlace.device.cuda.backend.tensors import TORCH_TYPES, sample_inputs
from interlace.device.cuda.graphs.program import (
    Dims,
    LaneContext,
    RunnableModel,
    TensorSlot,
    addresses,
    input_slots,
    output_layout,
    slot,
)
from interlace.device.cuda.memory.parameters import BatchParameters, TransferKernels


class EagerProgram:
    """A ``BatchProgram`` for what cannot be captured, and for shapes without a graph.

    Memory comes from torch's cache of the lane's stream. What a batch left behind is kept until the
    next one is launched: what is freed then is used again by that stream alone, so after its end.
    """

    def __init__(
        self,
        context: LaneContext,
        model: RunnableModel,
        rows: int,
        dims: Dims,
        outputs: tuple[TensorSlot, ...],
    ) -> None:
        self.batched = model.signature.batched
        self.inputs = input_slots(model.signature, dims)
        self.outputs = outputs
        self._context = context
        self._model = model
        driver = context.backend.driver
        self._transfer = TransferKernels(driver, context.backend.kernels)
        self.rows = rows
        self._kept: Sequence[torch.Tensor] = ()
        places = len(self.inputs), len(outputs)
        self._parameters = BatchParameters(driver, context.memory, *places, rows, model.tables)

    def launch(
        self, sequence: int, rows: int, sources: Sequence[Sequence[int]], targets: Sequence[int]
    ) -> int:
        """As ``BatchProgram.launch``.

        Raises:
            ValueError: the sizes of its outputs are others than for made-up inputs.
            Exception: whatever the model raises.
        """
        self._parameters.write(sequence, rows, sources, targets)
        context = self._context
        stream = context.lane.stream
        self._transfer.begin(stream, self._parameters)
        turn = self._parameters.launched()
        try:
            context.backend.threads.run(context.lane.green, partial(self._run, stream))
        except Exception:
            # Nobody awaits its end. Its turn has been taken: the next block must be free again.
            context.backend.driver.synchronize(stream)
            raise
        return turn

    def times_ns(self, turn: int) -> tuple[int, int]:
        return self._parameters.times_ns(turn)

    def close(self) -> None:
        """Let go of its memory; it does not run."""
        self._kept = ()
        self._parameters.close()

    def _run(self, stream: int) -> None:
        backend = self._context.backend
        with on_stream(backend, stream), torch.inference_mode():
            values = self._gathered(stream)
            keep_up(backend, stream)
            self._kept = self._model.execute(values, stream, self._parameters)
            found = output_layout(self._model.signature, self._kept)
            if found != self.outputs:
                raise ValueError(
                    f"outputs of shapes {[one.dims for one in found]} instead of "
                    f"{[one.dims for one in self.outputs]}: on a GPU, sizes of outputs must follow "
                    f"from sizes of inputs"
                )
            kept = addresses(self._kept, self.outputs)
            self._transfer.finish(stream, self._parameters, kept, self._context.flag)

    def _gathered(self, stream: int) -> dict[str, torch.Tensor]:
        values = {}
        for place, one in enumerate(self.inputs):
            shape = (self.rows, *one.dims) if self.batched else one.dims
            value = torch.empty(shape, dtype=TORCH_TYPES[one.datatype], device=self._model.device)
            self._transfer.gather(stream, self._parameters, place, value.data_ptr(), one.row_bytes)
            values[one.name] = value
        return values


def output_slots(
    backend: CudaBackend, stream: int, model: RunnableModel, rows: int, dims: Dims
) -> tuple[TensorSlot, ...]:
    """What comes out for inputs of these shapes; found by a run if the signature leaves it open.

    Raises:
        Exception: whatever the model raises on made-up inputs.
    """
    signature = model.signature
    if not any(-1 in spec.dims for spec in signature.outputs):
        return tuple(slot(spec.name, spec.datatype, spec.dims) for spec in signature.outputs)
    with on_stream(backend, stream), torch.inference_mode():
        values = sample_inputs(model, dims, rows)
        return output_layout(signature, model.outputs(values))


def keep_up(backend: CudaBackend, stream: int) -> None:
    """Torch on the CPU follows no stream: have what was launched end first."""
    if torch.device(backend.torch_device).type == "cpu":
        backend.driver.synchronize(stream)
