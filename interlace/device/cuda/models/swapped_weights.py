"""A model with swapped weights: all of them on the host, some on the GPU, some on their way.

Its kernels find weights in a window of their lane, and rows of lookup tables wherever those lie.
For each batch, weights missing in the window are copied group by group: from the GPU's own memory
if they are resident there, else over the link. Before each group the batch waits for the event
behind its copies. So no layer runs before its weights have arrived; weights that are not resident
make a batch slow, never wrong.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from itertools import chain
from types import MappingProxyType
from typing import Any, Final, NamedTuple

import torch
from torch import nn

from interlace.device.cuda.backend.base import CudaBackend
from interlace.device.cuda.backend.tensors import tensor_at
from interlace.device.cuda.driver.api import CopyGroup, CudaError, Piece
from interlace.device.cuda.graphs.program import BatchProgram, TensorSlot, keep_up
from interlace.device.cuda.lanes import Lane
from interlace.device.cuda.memory.parameters import BatchParameters
from interlace.device.cuda.memory.weights_memory import WeightsMemory
from interlace.device.cuda.models.cold_layout import cold_layout, joined
from interlace.device.cuda.models.opening import PortableModel, TensorsByName
from interlace.device.cuda.models.precision import ModelVariant
from interlace.device.cuda.models.weights import DeviceWeights, WeightsHandle, lay_out

_OWN_LINK: Final[Mapping[int, int]] = MappingProxyType({})
_LOOKUP_THREADS: Final = 512
_LOOKUP_BLOCKS: Final = 64
_WARP: Final = 32


class LaneExecution(NamedTuple):
    """What runs just now in the thread that holds the model."""

    lane: LaneModel
    stream: int
    parameters: BatchParameters


class SwappedWeights:
    """The weights of one model. ``held`` says where on the GPU its layers are, by index.

    ``fetch``, ``evict`` and launches belong to one thread; preparing lanes may be another's.
    """

    def __init__(
        self,
        model: PortableModel,
        memory: WeightsMemory,
        backend: CudaBackend,
        stream: int,
        run: Callable[[], object],
    ) -> None:
        """Copy the weights from where they were placed to the host; that place is free then.

        ``run`` executes the model once for one row, on ``stream``.

        Raises:
            ValueError: its layers cannot be told apart.
            CudaError, OSError: no memory is left, of the GPU's or of the host's.
        """
        self.model = model
        self.backend = backend
        self.memory = memory
        self.held: dict[int, int] = {}
        self.execution: LaneExecution | None = None
        self.lanes: dict[Lane, LaneModel] = {}
        self._lock = threading.RLock()
        self._hooks: list[Any] = []
        with backend.torch_stream(stream), torch.inference_mode():
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
            self._ready = [  # of each group, by each way that it comes
                [backend.driver.event() for _ in memory.incoming] for _ in self.layout.groups
            ]
            undo.pop_all()
        self._adopted = 0
        self._adopt(self.host.device)
        self._watch()

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
            for event in chain.from_iterable(self._ready):
                steps.callback(driver.destroy_event, event)
            for stream in self.memory.incoming:
                steps.callback(driver.synchronize, stream)

    # ---------------------------------------------------------------------- coming and going
    def fetch(self, wanted: Collection[int], links: Mapping[int, int] = _OWN_LINK) -> None:
        """Enqueue copies of these layers, in the order in which they run, group by group.

        The first is on its way before the second has its place. ``links`` are the peers that
        layers come by, 0 the own link; so does what would come by a peer that is not there. Layers
        that no place is found for stay on the host.

        Raises:
            CudaError: the driver refused; nothing has come then.
        """
        new: dict[int, int] = {}
        try:
            for ready, group in zip(self._ready, self.layout.groups, strict=True):
                placed = self._placed(group, wanted)
                new |= placed
                self._send(placed, ready, links)
        except CudaError:
            for address in new.values():
                self.memory.give_back(address)
            self.memory.line_up()  # behind what was enqueued of it
            raise
        self.held.update(new)

    def arrivals(self, group: int) -> Sequence[int]:
        """The events behind what was sent of a group, by whichever ways; at least one."""
        return self._ready[group]

    def evict(self, layers: Collection[int]) -> None:
        """Give the places of these layers back, for what is copied after their last use."""
        for lane in list(self.lanes.values()):  # the loader may add one meanwhile
            lane.left(layers)
        groups = {self._group_of[index] for index in layers if index in self.held}
        events = chain.from_iterable(self._ready[group] for group in groups)
        if self.memory.paths and not all(map(self.backend.driver.ended, events)):
            self.memory.line_up()
        for index in layers:
            address = self.held.pop(index, None)
            if address is not None:
                self.memory.give_back(address)

    def address(self, index: int) -> int:
        """Where a layer's weights are read now, at their best."""
        return self.held.get(index) or self._on_host(index)

    def leave(self, lane: Lane) -> None:
        """Nothing of it runs on a lane any more; unknown ones pass."""
        found = self.lanes.pop(lane, None)
        if found is not None:
            found.close()

    # ------------------------------------------------------------------------------ executing
    @contextmanager
    def at(self, base: int, execution: LaneExecution | None = None) -> Iterator[PortableModel]:
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

    def _watch(self) -> None:
        """Have layers wait for their weights, and tables be read where they lie."""
        for index, layer in enumerate(self.layout.layers):
            hook = partial(self._before, self._group_of[index])
            self._hooks.append(layer.module.register_forward_pre_hook(hook))
        for place, index in enumerate(self.tables):
            module: Any = self.layout.layers[index].module
            module.forward = partial(self._looked_up, module, place)

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

    def _placed(self, group: Sequence[int], wanted: Collection[int]) -> dict[int, int]:
        """Places for layers of a group that are not held, side by side if there is room."""
        layers = self.layout.layers
        absent = [at for at in group if at not in self.held and layers[at].nbytes]
        missing = [at for at in absent if at in wanted]
        found = self.memory.take([layers[at].nbytes for at in missing])
        return {at: to for at, to in zip(missing, found, strict=True) if to is not None}

    def _send(
        self, places: Mapping[int, int], ready: Sequence[int], links: Mapping[int, int]
    ) -> None:
        """A group over the own link, then over each peer's; ``ready`` are its events."""
        ways: list[list[Piece]] = [[] for _ in self.memory.incoming]
        for at, place in places.items():
            layer, link = self.layout.layers[at], links.get(at, 0)
            piece = (place, self.host.host + layer.begin, layer.nbytes)
            ways[link if link < len(ways) else 0].append(piece)
        for number, (event, pieces) in enumerate(zip(ready, ways, strict=True)):
            if not pieces:
                continue
            copies = [CopyGroup(0, joined(pieces), event)]
            if number == 0:
                self.backend.driver.copy_groups(copies, self.memory.link)
            else:
                self.memory.paths[number - 1].bring(copies)

    def _on_host(self, index: int) -> int:
        return self.host.device + self.layout.layers[index].begin

    def _stays(self, stream: int) -> DeviceWeights:
        """What no layer has, in memory of its own."""
        rest = {name: one for name, one in self.model.tensors.items() if name not in self._moving}
        fixed = DeviceWeights.allocate(
            self.backend.driver, lay_out(rest, ModelVariant(), frozenset(rest))
        )
        with self.backend.torch_stream(stream):
            fixed.fill(rest, self.model.device)
        self.backend.driver.synchronize(stream)
        fixed.adopt(rest, self.model.device)
        return fixed


class LaneModel:
    """A ``RunnableModel`` on a window of its lane. ``events`` say that a group is in the window."""

    def __init__(self, weights: SwappedWeights, lane: Lane) -> None:
        model = weights.model
        self.described, self.signature, self.device = model.described, model.signature, model.device
        self.defaults: Mapping[str, int] = model.defaults
        self.tables = len(weights.tables)
        self._weights = weights
        self._lane = lane
        self._driver = weights.backend.driver
        self.window = weights.memory.window(lane, weights.layout.window_bytes)
        self._events = [self._driver.event() for _ in weights.layout.groups]
        self._waited = -1
        # As if all had come once: what was never recorded says nothing in a graph.
        groups = [CopyGroup(0, (), event) for event in self._events]
        self._driver.copy_groups(groups, self.window.stream)
        weights.lanes[lane] = self

    def outputs(self, values: TensorsByName) -> tuple[torch.Tensor, ...]:
        """On the weights of the host, read in place: for what is not served."""
        with self._weights.at(self._weights.host.device) as model:
            return model.outputs(values)

    def execute(
        self, values: TensorsByName, stream: int, parameters: BatchParameters
    ) -> tuple[torch.Tensor, ...]:
        """On the window, each group when it is there."""
        execution = LaneExecution(self, stream, parameters)
        with self._weights.at(self.window.address, execution) as model:
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
        """Send what the window lacks after it; where each table's rows are read."""
        weights, window, groups = self._weights, self.window, list[CopyGroup]()
        if window.holder is not weights:
            window.holder, window.filled = weights, set()
            groups.append(CopyGroup(window.done, (), 0))
        for at, group in enumerate(weights.layout.groups):
            missing = [one for one in group if self._lacks(one)]
            if missing:
                pieces = joined([self._piece(one) for one in missing if not self._table(one)])
                *others, last = weights.arrivals(at)
                groups += [CopyGroup(event, (), 0) for event in others]
                groups.append(CopyGroup(last, pieces, self._events[at]))
                window.filled.update(missing)
        if groups:
            try:
                self._driver.copy_groups(groups, window.stream)
            except CudaError:
                window.holder = None
                raise
        return [weights.address(index) for index in weights.tables]

    def launched(self) -> None:
        """A batch is behind what was sent: the window is its own until it ends."""
        self._driver.record(self.window.done, self._lane.stream)

    def left(self, layers: Collection[int]) -> None:
        """Those layers leave the GPU's memory; what is in the window stays."""
        if self.window.holder is self._weights:
            for stream in self._weights.memory.incoming:
                self._driver.wait(stream, self.window.done)
            self.window.filled -= set(self._weights.tables) & set(layers)

    def close(self) -> None:
        """It does not run here any more."""
        if self.window.holder is self._weights:
            self.window.holder = None
        with ExitStack() as steps:
            for event in self._events:
                steps.callback(self._driver.destroy_event, event)
            steps.callback(self._weights.memory.leave, self._lane, self.window)
            steps.callback(self._driver.synchronize, self.window.stream)

    def _table(self, index: int) -> bool:
        return self._weights.layout.layers[index].table

    def _lacks(self, index: int) -> bool:
        """Whether a layer was not sent here; of a table, whether its arrival was not awaited."""
        weights = self._weights
        if index in self.window.filled or not weights.layout.layers[index].nbytes:
            return False
        return index in weights.held or not self._table(index)

    def _piece(self, index: int) -> Piece:
        layer = self._weights.layout.layers[index]
        return self.window.address + layer.begin, self._weights.address(index), layer.nbytes


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
