"""A model whose weights come and go, on one lane: in a window that is filled behind each launch."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from contextlib import ExitStack

import torch

from interlace.device.cuda.driver.api import CopyGroup, CudaError, Piece
from interlace.device.cuda.graphs.eager import keep_up
from interlace.device.cuda.graphs.program import BatchProgram, TensorSlot
from interlace.device.cuda.lanes import Lane
from interlace.device.cuda.memory.parameters import BatchParameters
from interlace.device.cuda.models.cold_layout import joined
from interlace.device.cuda.models.opening import TensorsByName
from interlace.device.cuda.models.swapped_weights import LaneExecution, SwappedWeights


class LaneModel:
    """A ``RunnableModel`` on a window of its lane. ``events`` say that a group is in the window."""

    def __init__(self, weights: SwappedWeights, lane: Lane) -> None:
        """
        Raises:
            CudaError: there is no memory for the window.
        """
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
