"""A model ready to run batches on one lane: as a graph, or its kernels one by one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from typing import Final, NamedTuple, Protocol

import torch

from interlace.core.tensor import Signature, element_count
from interlace.device.cuda.backend.base import CudaBackend
from interlace.device.cuda.backend.tensors import (
    TORCH_TYPES,
    RunnableModel,
    sample_inputs,
    tensor_at,
)
from interlace.device.cuda.driver.api import Driver
from interlace.device.cuda.lanes import CaptureStream, Lane
from interlace.device.cuda.memory.mapped import MappedMemory
from interlace.device.cuda.memory.parameters import BatchParameters, TransferKernels
from interlace.device.cuda.models.weights import allocate

_ALIGN_BYTES: Final = 256

Dims = Mapping[str, tuple[int, ...]]


class TensorSlot(NamedTuple):
    """One input or output; ``dims`` are those of a row, or the whole shape if there are no rows."""

    name: str
    datatype: str
    dims: tuple[int, ...]
    row_bytes: int


class LaneContext(NamedTuple):
    """What programs of one lane work with. ``flag`` is the lane's word as the GPU sees it."""

    backend: CudaBackend
    memory: MappedMemory
    lane: Lane
    capture_stream: CaptureStream
    flag: int


def input_slots(signature: Signature, dims: Dims) -> tuple[TensorSlot, ...]:
    """The inputs that ``dims`` names, in the order of the signature."""
    return tuple(
        slot(spec.name, spec.datatype, dims[spec.name])
        for spec in signature.inputs
        if spec.name in dims
    )


def slot(name: str, datatype: str, dims: tuple[int, ...]) -> TensorSlot:
    return TensorSlot(name, datatype, dims, element_count(dims) * TORCH_TYPES[datatype].itemsize)


class BatchProgram(Protocol):
    """A model ready to run batches of up to so many rows on one lane."""

    @property
    def inputs(self) -> Sequence[TensorSlot]: ...
    @property
    def outputs(self) -> Sequence[TensorSlot]: ...
    @property
    def batched(self) -> bool: ...
    @property
    def rows(self) -> int: ...  #: what is executed, however few rows a batch has
    def launch(
        self, sequence: int, rows: int, sources: Sequence[Sequence[int]], targets: Sequence[int]
    ) -> int:
        """Start it: per input the address of each row, per output where its rows go.

        Returns the batch's turn. One more may be launched before it ends, which begins then.

        Raises:
            ValueError: more rows than it has, or not as many inputs or outputs.
        """

    def times_ns(self, turn: int) -> tuple[int, int]:
        """When the batch of a turn, which has ended, began and ended by the GPU's clock."""


class StaticInputs:
    """Where a model's graphs of one lane find their inputs: one place for all batch sizes.

    ``fills`` are rows for optional inputs that a request leaves out.
    """

    def __init__(
        self,
        driver: Driver,
        slots: Sequence[TensorSlot],
        max_rows: int,
        defaults: Mapping[str, int],
    ) -> None:
        """
        Raises:
            MemoryError: what is needed and what there is.
        """
        self.slots = tuple(slots)
        self._driver = driver
        self._filled = {one.name: defaults[one.name] for one in slots if one.name in defaults}
        offsets, end = [], 0
        for one in self.slots:
            offsets.append(end)
            rows = max_rows + (one.name in self._filled)
            end += -(-one.row_bytes * rows // _ALIGN_BYTES) * _ALIGN_BYTES
        self.nbytes = max(1, end)
        self._base = allocate(driver, self.nbytes, "its inputs")
        self.addresses = [self._base + offset for offset in offsets]
        self.fills = {
            one.name: address + max_rows * one.row_bytes
            for one, address in zip(self.slots, self.addresses, strict=True)
            if one.name in self._filled
        }

    def values(self, rows: int | None, device: str) -> dict[str, torch.Tensor]:
        """Tensors on the first ``rows`` rows of each input; ``None`` for a model without rows."""
        return {
            one.name: _tensor(one, address, rows, device)
            for one, address in zip(self.slots, self.addresses, strict=True)
        }

    def write(self, sample: Mapping[str, torch.Tensor], rows: int | None, device: str) -> None:
        """Contents that the model accepts, and the fills."""
        for name, value in self.values(rows, device).items():
            value.copy_(sample[name])
        for one in self.slots:
            if one.name in self.fills:
                _tensor(one, self.fills[one.name], 1, device).fill_(self._filled[one.name])

    def close(self) -> None:
        self._driver.free(self._base)


def _tensor(one: TensorSlot, address: int, rows: int | None, device: str) -> torch.Tensor:
    shape = one.dims if rows is None else (rows, *one.dims)
    return tensor_at(address, shape, TORCH_TYPES[one.datatype], device)


class GraphProgram:
    """A ``BatchProgram`` of one launch: gather, model, publish, signal.

    The graph never changes. Values of one batch are read from a parameter block. There are two
    blocks, so one batch may be launched behind another.
    """

    def __init__(
        self, context: LaneContext, model: RunnableModel, inputs: StaticInputs, rows: int
    ) -> None:
        """Capture it.

        Raises:
            Exception: the model does what cannot be captured, or whatever else it raises.
        """
        self.rows = rows
        self.batched = model.signature.batched
        self.inputs = inputs.slots
        self.outputs: tuple[TensorSlot, ...] = ()
        self._context = context
        self._model = model
        driver = context.backend.driver
        self._transfer = TransferKernels(driver, context.backend.kernels)
        self._addresses = inputs.addresses
        self._values = inputs.values(rows if self.batched else None, model.device)
        self._kept: Sequence[torch.Tensor] = ()
        count = len(model.signature.outputs)
        with ExitStack() as undo:
            self._parameters = BatchParameters(
                driver, context.memory, len(self.inputs), count, rows, model.tables
            )
            undo.callback(self._parameters.close)
            self._captured = context.capture_stream.capture(self._body)
            undo.pop_all()

    def launch(
        self, sequence: int, rows: int, sources: Sequence[Sequence[int]], targets: Sequence[int]
    ) -> int:
        self._parameters.write(sequence, rows, sources, targets)
        context = self._context
        context.backend.driver.launch_graph(self._captured.executable, context.lane.stream)
        return self._parameters.launched()

    def times_ns(self, turn: int) -> tuple[int, int]:
        return self._parameters.times_ns(turn)

    def close(self) -> None:
        """Destroy it; it does not run."""
        self._kept, self._values = (), {}
        self._context.capture_stream.destroy(self._captured)
        self._parameters.close()

    def _body(self) -> None:
        stream, parameters = self._context.capture_stream.handle, self._parameters
        self._transfer.begin(stream, parameters)
        for place, (one, address) in enumerate(zip(self.inputs, self._addresses, strict=True)):
            self._transfer.gather(stream, parameters, place, address, one.row_bytes)
        # A test's graph calls this again for each launch: then what was made is kept meanwhile.
        self._kept = self._model.execute(self._values, stream, parameters)
        self.outputs = output_layout(self._model.signature, self._kept)
        kept = addresses(self._kept, self.outputs)
        self._transfer.finish(stream, parameters, kept, self._context.flag)


def output_layout(signature: Signature, outputs: Sequence[torch.Tensor]) -> tuple[TensorSlot, ...]:
    """Return the slot of one row of each output."""
    return tuple(
        slot(spec.name, spec.datatype, tuple(tensor.shape)[1 if signature.batched else 0 :])
        for spec, tensor in zip(signature.outputs, outputs, strict=True)
    )


def addresses(
    tensors: Sequence[torch.Tensor], slots: Sequence[TensorSlot]
) -> list[tuple[int, int]]:
    """Where each tensor lies, and the bytes of a row."""
    return [(tensor.data_ptr(), one.row_bytes) for tensor, one in zip(tensors, slots, strict=True)]


class DefaultedProgram:
    """A ``BatchProgram`` that fills optional inputs from rows that are kept for them."""

    def __init__(self, program: GraphProgram, given: frozenset[str], fills: Mapping[str, int]):
        self.rows = program.rows
        self.batched = program.batched
        self.outputs = program.outputs
        self.inputs = tuple(one for one in program.inputs if one.name in given)
        self._program = program
        self._fills = [None if one.name in given else fills[one.name] for one in program.inputs]

    def launch(
        self, sequence: int, rows: int, sources: Sequence[Sequence[int]], targets: Sequence[int]
    ) -> int:
        given = iter(sources)
        whole = [next(given) if fill is None else [fill] * rows for fill in self._fills]
        return self._program.launch(sequence, rows, whole, targets)

    def times_ns(self, turn: int) -> tuple[int, int]:
        return self._program.times_ns(turn)


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
        with backend.torch_stream(stream), torch.inference_mode():
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
    """The outputs for inputs of these shapes, found by a run if the signature has free dims."""
    signature = model.signature
    if not any(-1 in spec.dims for spec in signature.outputs):
        return tuple(slot(spec.name, spec.datatype, spec.dims) for spec in signature.outputs)
    with backend.torch_stream(stream), torch.inference_mode():
        values = sample_inputs(model, dims, rows)
        return output_layout(signature, model.outputs(values))


def keep_up(backend: CudaBackend, stream: int) -> None:
    """Torch on the CPU follows no stream: have what was launched end first."""
    if torch.device(backend.torch_device).type == "cpu":
        backend.driver.synchronize(stream)
