"""A model whose weights come and go: all of them on the host, some on the GPU, some on their way.

Its kernels find weights in a window of their lane, and rows of lookup tables wherever those lie.
Before a batch is launched, what the window lacks is sent after it, group by group: from the GPU's
own memory if it was brought there, else over the link. The batch waits before each group for the
event behind it. So no layer runs before its weights are there, whatever was brought, and what was
not brought is slow, never wrong.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any, Final, NamedTuple

import torch
from torch import nn

from interlace.device.cuda.backend.base import CudaBackend, on_stream
from interlace.device.cuda.backend.tensors import tensor_at
from interlace.device.cuda.driver.api import CopyGroup
from interlace.device.cuda.driver.errors import CudaError
from interlace.device.cuda.graphs.eager import keep_up
from interlace.device.cuda.graphs.program import BatchProgram, TensorSlot
from interlace.device.cuda.lanes import Lane
from interlace.device.cuda.memory.parameters import BatchParameters
from interlace.device.cuda.memory.weights_memory import Window, WeightsMemory
from interlace.device.cuda.models.cold_layout import ColdLayout, cold_layout
from interlace.device.cuda.models.opening import PortableModel, TensorsByName
from interlace.device.cuda.models.variant import ModelVariant
from interlace.device.cuda.models.weights import DeviceWeights, WeightsHandle, lay_out

_LOOKUP_THREADS: Final = 512
_LOOKUP_BLOCKS: Final = 64
_WARP: Final = 32

_Piece = tuple[int, int, int]


class _Execution(NamedTuple):
    """What runs just now in a thread that holds the model."""

    lane: LaneModel
    stream: int
    parameters: BatchParameters


class ColdWeights:
    """The weights of one model. ``held`` says where on the GPU its layers are, by index.

    ``fetch``, ``evict`` and launches belong to one thread; preparing lanes may be another's.
    """

    def __init__(
        self,
        model: PortableModel,
        placed: DeviceWeights,
        memory: WeightsMemory,
        backend: CudaBackend,
        stream: int,
        run: Callable[[], object],
    ) -> None:
        """Copy the weights from where they were ``placed`` to the host; ``placed`` is free then.

        ``run`` executes the model once for one row, on ``stream``.

        Raises:
            ValueError: its layers cannot be told apart.
            CudaError, OSError: no memory is left, of the GPU's or of the host's.
            Exception: whatever the model raises.
        """
        self.model = model
        self.backend = backend
        self.memory = memory
        self.held: dict[int, int] = {}
        self.execution: _Execution | None = None
        self.lanes: dict[Lane, LaneModel] = {}
        self._lock = threading.RLock()
        self._hooks: list[Any] = []
        with on_stream(backend, stream), torch.inference_mode():
            self.layout = cold_layout(model.tensors, run)
        backend.driver.synchronize(stream)
        self._moving = {name: model.tensors[name] for name in self.layout.places}
        self._group_of = [at for at, group in enumerate(self.layout.groups) for _ in group]
        self.tables = [at for at, one in enumerate(self.layout.layers) if one.table]
        with ExitStack() as undo:
            self._fixed = self._stays(stream)
            undo.callback(self._fixed.close)
            self.host = memory.host.take(self.layout.nbytes)
            undo.callback(memory.host.give_back, self.host)
            pieces = [
                (self.host.device + self.layout.places[name].offset, one.data_ptr(), one.nbytes)
                for name, one in self._moving.items()
            ]
            backend.driver.copy_groups([CopyGroup(0, pieces, 0)], stream)
            backend.driver.synchronize(stream)
            self.ready = [backend.driver.event() for _ in self.layout.groups]
            undo.pop_all()
        self._adopted = 0
        self._adopt(self.host.device)
        for index, layer in enumerate(self.layout.layers):
            hook = partial(self._before, self._group_of[index])
            self._hooks.append(layer.module.register_forward_pre_hook(hook))
        for place, index in enumerate(self.tables):
            module: Any = self.layout.layers[index].module
            module.forward = partial(self._looked_up, module, place)

    # -------------------------------------------------------------- as ``DeviceWeights``
    @property
    def own_bytes(self) -> int:
        return self.layout.nbytes

    def share(self, variant: ModelVariant) -> WeightsHandle:
        """
        Raises:
            CudaError: always.
        """
        why = "weights that come and go are not shared between processes"
        raise CudaError("cuIpcGetMemHandle", "CUDA_ERROR_NOT_SUPPORTED", why)

    def close(self) -> None:
        """Give everything back; no lane has it, nothing of it runs."""
        driver = self.backend.driver
        for hook in self._hooks:
            hook.remove()
        for index in self.tables:
            vars(self.layout.layers[index].module).pop("forward", None)
        self.evict(list(self.held))
        with ExitStack() as steps:
            steps.callback(self._fixed.close)
            steps.callback(self.memory.host.give_back, self.host)
            for event in self.ready:
                steps.callback(driver.destroy_event, event)
            steps.callback(driver.synchronize, self.memory.link)

    # ---------------------------------------------------------------------- coming and going
    def fetch(self, wanted: Collection[int]) -> None:
        """Enqueue copies of these layers, in the order in which they run.

        Layers that no place is found for stay on the host.

        Raises:
            CudaError: the driver refused; nothing has come then.
        """
        layers, groups, new = self.layout.layers, [], dict[int, int]()
        for ready, group in zip(self.ready, self.layout.groups, strict=True):
            missing = [at for at in group if at in wanted and self._absent(at)]
            found = self.memory.take([layers[at].nbytes for at in missing])
            places = {at: to for at, to in zip(missing, found, strict=True) if to is not None}
            pieces = [(to, self._on_host(at), layers[at].nbytes) for at, to in places.items()]
            new.update(places)
            if pieces:
                groups.append(CopyGroup(0, _joined(pieces), ready))
        try:
            self.backend.driver.copy_groups(groups, self.memory.link)
        except CudaError:
            for address in new.values():
                self.memory.give_back(address)
            raise
        self.held.update(new)

    def evict(self, layers: Collection[int]) -> None:
        """Give the places of these layers back, for what is copied after their last use.

        Raises:
            CudaError: the driver refused.
        """
        for lane in self.lanes.values():
            lane.left(layers)
        for index in layers:
            address = self.held.pop(index, None)
            if address is not None:
                self.memory.give_back(address)

    def address(self, index: int) -> int:
        """Where a layer's weights are read now, at their best."""
        return self.held.get(index) or self._on_host(index)

    def on(self, lane: Lane) -> LaneModel:
        """The model as it runs on a lane.

        Raises:
            CudaError: there is no memory for a window.
        """
        if lane not in self.lanes:
            self.lanes[lane] = LaneModel(self, lane)
        return self.lanes[lane]

    def leave(self, lane: Lane) -> None:
        """Nothing of it runs on a lane any more; unknown ones pass."""
        found = self.lanes.pop(lane, None)
        if found is not None:
            found.close()

    # ------------------------------------------------------------------------------ executing
    @contextmanager
    def at(self, base: int, execution: _Execution | None = None) -> Iterator[PortableModel]:
        """The model with its weights at a window, or on the host, as this thread's alone."""
        with self._lock:
            if base != self._adopted:
                self._adopt(base)
            self.execution = execution
            try:
                yield self.model
            finally:
                self.execution = None

    def _adopt(self, base: int) -> None:
        with torch.no_grad():
            for name, tensor in self._moving.items():
                offset, shape, stride, dtype = self.layout.places[name]
                table = offset >= self.layout.window_bytes
                address = (self.host.device if table else base) + offset
                tensor.data = tensor_at(address, shape, dtype, self.model.device, stride)
        self._adopted = base

    def _before(self, group: int, module: nn.Module, arguments: Any) -> None:
        """A layer is about to run."""
        if self.execution is not None:
            self.execution.lane.wait(group, self.execution.stream)

    def _looked_up(self, module: nn.Embedding, place: int, input: torch.Tensor) -> torch.Tensor:
        """The forward of a lookup table."""
        if self.execution is None:
            return nn.Embedding.forward(module, input)
        indices, weight = input.contiguous(), module.weight
        lane, stream, parameters = self.execution
        shape = (*indices.shape, weight.shape[1])
        found = torch.empty(shape, dtype=weight.dtype, device=self.model.device)
        row_bytes = weight.shape[1] * weight.element_size()
        if found.nbytes:
            word = parameters.table_word(place)
            sizes = indices.element_size(), indices.numel(), word
            warps = _LOOKUP_THREADS // _WARP
            self.backend.driver.launch(
                self.backend.kernels.embed_rows,
                (min(_LOOKUP_BLOCKS, -(-indices.numel() // warps)), 1, 1),
                (_LOOKUP_THREADS, 1, 1),
                stream,
                (indices.data_ptr(), *sizes, found.data_ptr(), row_bytes, weight.shape[0]),
            )
            lane.catch_up(stream)
        return found

    def _absent(self, index: int) -> bool:
        return index not in self.held and self.layout.layers[index].nbytes > 0

    def _on_host(self, index: int) -> int:
        return self.host.device + self.layout.layers[index].begin

    def _stays(self, stream: int) -> DeviceWeights:
        """What no layer has, in memory of its own."""
        rest = {
            name: one for name, one in self.model.tensors.items() if name not in self._moving
        }
        fixed = DeviceWeights.allocate(
            self.backend.driver, lay_out(rest, ModelVariant(), frozenset(rest))
        )
        with on_stream(self.backend, stream):
            fixed.fill(rest, self.model.device)
        self.backend.driver.synchronize(stream)
        fixed.adopt(rest, self.model.device)
        return fixed


class LaneModel:
    """A ``RunnableModel`` on a window of its lane. ``events`` say that a group is in the window."""

    def __init__(self, weights: ColdWeights, lane: Lane) -> None:
        """
        Raises:
            CudaError: there is no memory for the window.
        """
        model = weights.model
        self.signature, self.device, self.defaults = model.signature, model.device, model.defaults
        self.tables = len(weights.tables)
        self._weights = weights
        self._lane = lane
        self._driver = weights.backend.driver
        self._window: Window = weights.memory.window(lane, weights.layout.window_bytes)
        self._events = [self._driver.event() for _ in weights.layout.groups]
        self._waited = -1

    def outputs(self, values: TensorsByName) -> tuple[torch.Tensor, ...]:
        """On the weights of the host, read in place: for what is not served."""
        with self._weights.at(self._weights.host.device) as model:
            return model.outputs(values)

    def execute(
        self, values: TensorsByName, stream: int, parameters: BatchParameters
    ) -> tuple[torch.Tensor, ...]:
        """On the window, each group when it is there."""
        execution = _Execution(self, stream, parameters)
        with self._weights.at(self._window.address, execution) as model:
            self._waited = -1
            return model.outputs(values)

    def wait(self, group: int, stream: int) -> None:
        """What a stream does from now on needs that group, and those before it."""
        if group <= self._waited:
            return
        self._waited = group
        captured = stream != self._lane.stream
        self._driver.wait(stream, self._events[group], external=captured)
        self.catch_up(stream)

    def catch_up(self, stream: int) -> None:
        """As ``keep_up``; a capture is not waited for."""
        if stream == self._lane.stream:
            keep_up(self._weights.backend, stream)

    def fill(self) -> list[int]:
        """Send what the window lacks after it; where each table's rows are read.

        Raises:
            CudaError: the driver refused.
        """
        weights, window, groups = self._weights, self._window, list[CopyGroup]()
        if window.holder is not weights:
            window.holder, window.filled = weights, set()
            groups.append(CopyGroup(window.done, (), 0))
        for at, group in enumerate(weights.layout.groups):
            missing = [one for one in group if self._lacks(one)]
            if missing:
                pieces = _joined([self._piece(one) for one in missing if not self._table(one)])
                groups.append(CopyGroup(weights.ready[at], pieces, self._events[at]))
                window.filled.update(missing)
        if groups:
            try:
                self._driver.copy_groups(groups, window.stream)
            except CudaError:
                window.holder = None
                raise
        return [weights.address(index) for index in weights.tables]

    def launched(self) -> None:
        """A batch is behind what was sent: the window is its own until it ends.

        Raises:
            CudaError: the driver refused.
        """
        self._driver.record(self._window.done, self._lane.stream)

    def left(self, layers: Collection[int]) -> None:
        """Those layers leave the GPU's memory; what is in the window stays.

        Raises:
            CudaError: the driver refused.
        """
        if self._window.holder is self._weights:
            self._driver.wait(self._weights.memory.link, self._window.done)
            self._window.filled.difference_update(one for one in layers if self._table(one))

    def close(self) -> None:
        """It does not run here any more."""
        if self._window.holder is self._weights:
            self._window.holder = None
        with ExitStack() as steps:
            for event in self._events:
                steps.callback(self._driver.destroy_event, event)
            steps.callback(self._weights.memory.leave, self._lane, self._window)
            steps.callback(self._driver.synchronize, self._window.stream)

    def _table(self, index: int) -> bool:
        return self._weights.layout.layers[index].table

    def _lacks(self, index: int) -> bool:
        """Whether a layer was not sent here; of a table, whether its arrival was not awaited."""
        weights = self._weights
        if index in self._window.filled or not weights.layout.layers[index].nbytes:
            return False
        return index in weights.held or not self._table(index)

    def _piece(self, index: int) -> _Piece:
        layer = self._weights.layout.layers[index]
        return self._window.address + layer.begin, self._weights.address(index), layer.nbytes


class WindowProgram:
    """A ``BatchProgram`` whose weights are sent after it."""

    def __init__(self, program: BatchProgram, lane: LaneModel) -> None:
        self.inputs: Sequence[TensorSlot] = program.inputs
        self.outputs: Sequence[TensorSlot] = program.outputs
        self.batched, self.rows = program.batched, program.rows
        self._program = program
        self._lane = lane

    def launch(
        self, sequence: int, rows: int, sources: Sequence[Sequence[int]], targets: Sequence[int]
    ) -> int:
        tables = self._lane.fill()
        turn = self._program.launch(sequence, rows, sources, (*targets, *tables))
        self._lane.launched()
        return turn

    def times_ns(self, turn: int) -> tuple[int, int]:
        return self._program.times_ns(turn)


def _joined(pieces: Sequence[_Piece]) -> list[_Piece]:
    """Pieces that lie side by side at both ends as one."""
    joined: list[_Piece] = []
    for target, source, nbytes in pieces:
        if joined:
            to, begin, size = joined[-1]
            if (to + size, begin + size) == (target, source):
                joined[-1] = to, begin, size + nbytes
                continue
        joined.append((target, source, nbytes))
    return joined

