"""A GPU that is not there, lanes on it, and one model driven through them."""

import ctypes
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any

import msgspec
import numpy as np

from interlace.core.model import Model
from interlace.device.cuda.backend.base import LibraryContext, threads_for
from interlace.device.cuda.driver.api import MappedBlock
from interlace.device.cuda.graphs.program import BatchProgram
from interlace.device.cuda.green_contexts.lanes import GreenLanes
from interlace.device.cuda.lanes import Lane
from interlace.device.cuda.memory.budget import MemoryBudget
from interlace.device.cuda.memory.mapped import MappedMemory
from interlace.device.cuda.models.loaded import LoadContext, LoadedModel
from interlace.device.cuda.models.weights import WeightsHandle
from interlace.formats.arrays import NUMPY_TYPES
from tests.device.cuda.fake.capture import on
from tests.device.cuda.fake.core import H100
from tests.device.cuda.fake.driver import FakeDriver

Arrays = Mapping[str, np.ndarray[Any, Any]]


class Bench:
    """Everything that a process with a GPU has, without the process."""

    def __init__(
        self, pace: str = "at once", handle_context: LibraryContext = "primary", **changes: Any
    ) -> None:
        self.driver = FakeDriver(H100, pace=pace)
        self.threads = threads_for(handle_context, self.driver)
        self.backend = on(self.driver)._replace(threads=self.threads)
        self.memory = MappedMemory(self.driver)
        self.lanes = GreenLanes(self.driver)
        self.budget = MemoryBudget(self.driver)
        self.notes: list[str] = []
        self.sequence = 0
        self._flags: dict[int, MappedBlock] = {}
        self._loaded: list[LoadedModel] = []
        self.context = LoadContext(
            self.backend, self.memory, self.budget, self._flag, self.notes.append, None
        )._replace(**changes)

    def carve(self, name: str, share_pct: int = 24) -> Lane:
        return self.lanes.carve(name, share_pct)

    def load(self, model: Model, *lanes: Lane, batches: tuple[int, ...] = ()) -> LoadedModel:
        loaded = LoadedModel(self.context, model)
        self._loaded.append(loaded)
        for lane in lanes:
            loaded.prepare(lane, batches)
        return loaded

    def run(self, loaded: LoadedModel, lane: Lane, inputs: Arrays) -> dict[str, Any]:
        """One batch of one request, from page-locked memory into page-locked memory."""
        batched = loaded.signature.batched
        rows = len(next(iter(inputs.values()))) if batched else 1
        program = loaded.program(lane, rows, {name: one.shape for name, one in inputs.items()})
        with ExitStack() as after:
            sources = [self._rows(inputs[slot.name], rows, after) for slot in program.inputs]
            targets = [self._take(slot.row_bytes * rows, after) for slot in program.outputs]
            self.launch(program, lane, rows, sources, [target.device for target in targets])
            return {
                slot.name: _read(
                    target, (rows, *slot.dims) if batched else slot.dims, slot.datatype
                )
                for slot, target in zip(program.outputs, targets, strict=True)
            }

    def launch(
        self, program: BatchProgram, lane: Lane, rows: int, sources: Any, targets: list[int]
    ) -> None:
        self.sequence += 1
        program.launch(self.sequence, rows, sources, targets)
        self.driver.synchronize(lane.stream)
        flag = ctypes.c_uint64.from_address(self._flags[lane.index].host)
        assert flag.value == self.sequence, "the batch ended without a signal"

    def close(self) -> None:
        """Raises Misuse if anything is left but what was loaded."""
        for loaded in self._loaded:
            loaded.close()
        self.threads.close()
        for flag in self._flags.values():
            self.memory.give_back(flag)
        self.lanes.close()
        self.memory.close()
        self.driver.unload_kernels(self.backend.kernels.module)
        self.driver.close()

    def _flag(self, index: int) -> int:
        if index not in self._flags:
            self._flags[index] = self.memory.take(8)
        return self._flags[index].device

    def _take(self, nbytes: int, after: ExitStack) -> MappedBlock:
        piece = self.memory.take(max(8, nbytes))
        after.callback(self.memory.give_back, piece)
        return piece

    def _rows(self, array: np.ndarray[Any, Any], rows: int, after: ExitStack) -> list[int]:
        """Each row somewhere else."""
        found = []
        for row in array if rows > 1 else [array]:
            data = np.ascontiguousarray(row).tobytes()
            piece = self._take(len(data), after)
            ctypes.memmove(piece.host, data, len(data))
            found.append(piece.device)
        return found


def _read(piece: MappedBlock, dims: tuple[int, ...], datatype: str) -> np.ndarray[Any, Any]:
    dtype = NUMPY_TYPES[datatype]
    nbytes = int(np.prod(dims)) * dtype.itemsize
    return np.frombuffer(ctypes.string_at(piece.host, nbytes), dtype).reshape(dims)


@contextmanager
def bench(pace: str = "at once", **changes: Any) -> Iterator[Bench]:
    """A bench that checks at its end that nothing is left, unless the test failed."""
    gpu = Bench(pace, **changes)
    yield gpu
    gpu.close()


def borrow(what: str, shared: WeightsHandle) -> list[str]:
    """What ``borrower`` answers; not forked, since torch's threads do not survive that."""
    sent = msgspec.msgpack.encode(shared).hex()
    command = [sys.executable, "-m", "tests.device.cuda.models.borrower", what, sent]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.split()
