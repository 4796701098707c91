"""A CPU device under test, with a loop of its own and an arena for inputs."""

from __future__ import annotations

import asyncio
import json
import os
import time
from collections.abc import Callable, Sequence
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np

from interlace.core.loading import LoadPlan, LoadStep, WeightPath
from interlace.core.messages import (
    CreatePartition,
    Fetch,
    Load,
    PartitionLost,
    ReleasePartition,
    Run,
    Unload,
    Work,
    WorkFinished,
)
from interlace.core.model import Format, Model, ServiceTerms
from interlace.core.request import Batch, Request
from interlace.core.tensor import BYTES, Signature, Span, Tensor
from interlace.device.cpu.device import CpuDevice
from interlace.device.cpu.execution import pack_strings, unpack_strings
from interlace.device.cpu.settings import CpuSettings
from interlace.device.process.link import WorkTimeouts
from interlace.formats.arrays import NUMPY_TYPES
from interlace.formats.runner import Array
from interlace.shm.arena import Arena, ArenaMap
from tests.device import models

#: How long what must happen may take; where processes start slowly, more is allowed.
WAIT_S = float(os.environ.get("INTERLACE_TEST_WAIT_S", "30"))
GPU = "cpu0"


def settings(folder: Path | None = None, **changes: object) -> CpuSettings:
    cores = tuple(sorted(os.sched_getaffinity(0)))[:2]
    values: dict[str, object] = {
        "cores": cores,
        "memory_bytes": 1 << 30,
        "weights_dir": None if folder is None else str(folder),
        "arena_bytes": 1 << 26,
        "opener": models.OPENER,
        "preload": {},
        "limits": WorkTimeouts(),
    }
    return CpuSettings(**{**values, **changes})  # type: ignore[arg-type]


def refusal(finished: WorkFinished) -> str:
    """Why work failed, alone."""
    failure = finished.failure
    assert failure is not None and not failure.fatal
    return failure.detail


def python_model(folder: Path, code: str, signature: Signature, terms: ServiceTerms) -> Model:
    """A model of the Python backend with this code, in a new folder whose name is its own."""
    (folder / "1").mkdir(parents=True)
    (folder / "1" / "model.py").write_text(code)
    inputs, outputs = (
        [{"name": one.name, "data_type": f"TYPE_{one.datatype}", "dims": one.dims} for one in side]
        for side in (signature.inputs, signature.outputs)
    )
    config = {
        "max_batch_size": signature.max_batch if signature.batched else 0,
        "input": inputs,
        "output": outputs,
        "model_transaction_policy": {"decoupled": signature.decoupled},
    }
    return Model(
        folder.name,
        1,
        Format.PYTHON,
        str(folder / "1"),
        "d",
        signature,
        terms,
        config_json=json.dumps(config),
    )


class Rig:
    """Plays the runtime's part: does work, waits for its end, reads the outputs."""

    def __init__(self, chosen: CpuSettings | Callable[[Rig], Any]) -> None:
        self.loop = asyncio.new_event_loop()
        self.arena = Arena.create(1 << 26)
        self.arenas = ArenaMap(os.getpid())
        self.arenas.add(self.arena)
        if isinstance(chosen, CpuSettings):
            self.device: Any = CpuDevice(self.loop, self.arenas, chosen)
        else:
            self.device = chosen(self)
        self.gpu: str = self.device.gpu.id
        self.finished: list[WorkFinished] = []
        self.lost: list[PartitionLost] = []
        self.device.on_event(self.lost.append)
        self._ids = count(1)

    def do(self, work: Work) -> None:
        """Start a piece of work; its end is added to ``finished``."""
        self.device.do(work, self.finished.append)

    def wait(self, until: Callable[[], bool]) -> None:
        """Run the loop until something is true."""

        async def watch() -> None:
            deadline = time.monotonic() + WAIT_S
            while not until():
                assert time.monotonic() < deadline, "it did not happen in time"
                await asyncio.sleep(0.002)

        self.loop.run_until_complete(watch())

    def pause(self, seconds: float = 0.1) -> None:
        """Let the loop run, to see that nothing happens."""
        self.loop.run_until_complete(asyncio.sleep(seconds))

    def end_of(self, work: Work) -> WorkFinished:
        """Do a piece of work and wait for its end."""
        self.do(work)
        self.wait(lambda: any(finished.work is work for finished in self.finished))
        (finished,) = [finished for finished in self.finished if finished.work is work]
        return finished

    def carve(self, name: str = "p", share_pct: int | None = None) -> WorkFinished:
        share = self.device.gpu.shares_pct[0] if share_pct is None else share_pct
        return self.end_of(CreatePartition(self.gpu, name, share))

    def load(self, model: Model, name: str = "p", batches: tuple[int, ...] = ()) -> WorkFinished:
        self.device.register(model)
        return self.end_of(Load(self.gpu, name, model.key, batches))

    def unload(self, model: Model, name: str = "p") -> WorkFinished:
        return self.end_of(Unload(self.gpu, name, model.key))

    def release(self, name: str = "p") -> WorkFinished:
        return self.end_of(ReleasePartition(self.gpu, name))

    def serve(self, model: Model, name: str = "p") -> Model:
        """Carve, and load a model that must load."""
        assert self.carve(name).failure is None
        assert self.load(model, name).failure is None
        return model

    def tensor(self, name: str, datatype: str, array: Array, at: int = 0) -> Tensor:
        """An input tensor in the arena, ``at`` bytes into a block."""
        data = pack_strings(array) if datatype == BYTES else array.tobytes()
        offset = self.arena.alloc(len(data) + at)
        assert offset is not None
        self.arena.view(offset + at, len(data))[:] = data
        span = Span(self.arena.number, offset + at, len(data))
        return Tensor(name, datatype, array.shape, span)

    def request(
        self, model: Model, *tensors: Tensor, rows: int | None = None, outputs: tuple[str, ...] = ()
    ) -> Request:
        count = tensors[0].shape[0] if rows is None else rows
        return Request(next(self._ids), model.key, 0.0, 1e9, count, (), 0, tensors, outputs)

    def floats(self, model: Model, *rows: Sequence[float]) -> Request:
        """A request of one FP32 input ``x`` with these rows."""
        array = np.array(rows, np.float32)
        return self.request(model, self.tensor("x", "FP32", array))

    def batch(self, *requests: Request, name: str = "p") -> Run:
        rows = sum(request.rows for request in requests)
        return Run(self.gpu, name, Batch(next(self._ids), requests[0].model, requests, rows))

    def run(self, *requests: Request, name: str = "p") -> WorkFinished:
        return self.end_of(self.batch(*requests, name=name))

    def read(self, tensor: Tensor) -> Array:
        """The values a tensor refers to."""
        view = self.arenas.view(tensor.span)
        if tensor.datatype == BYTES:
            return unpack_strings([view], tensor.shape, tensor.name)
        return np.frombuffer(bytes(view), NUMPY_TYPES[tensor.datatype]).reshape(tensor.shape)

    def values(self, finished: WorkFinished) -> list[list[object]]:
        """The first output of each request."""
        assert finished.failure is None, finished.failure
        return [self.read(tensors[0]).tolist() for tensors in finished.outputs]

    def free(self, finished: WorkFinished) -> None:
        assert isinstance(finished.work, Run)
        self.device.free(finished.work.batch.id)

    def close(self) -> None:
        self.device.close()
        self.arenas.close()
        self.arena.close()
        self.loop.close()


class ColdRig(Rig):
    """A device with ``budget_bytes`` for swapped weights; ``net`` has ``steps`` layers."""

    net: Model
    steps: int

    def __init__(self, folder: Path, budget_bytes: int) -> None:
        defaults = CpuSettings((0,), 0)
        real = {"opener": defaults.opener, "preload": defaults.preload}
        super().__init__(settings(folder, **real, weights_bytes=budget_bytes))

    def load_cold(self, name: str = "p", model: Model | None = None) -> WorkFinished:
        return self.end_of(Load(self.gpu, name, (model or self.net).key, (), True))

    def fetch_of(self, copied: set[int], name: str = "p", model: Model | None = None) -> Fetch:
        ways = [WeightPath.COPY if n in copied else WeightPath.HOST for n in range(self.steps)]
        steps = tuple(LoadStep(f"{n}", via) for n, via in enumerate(ways))
        return Fetch(self.gpu, name, (model or self.net).key, LoadPlan(steps, True, 1.0, 1.0))

    def ended(self, work: object) -> list[WorkFinished]:
        return [one for one in self.finished if one.work is work]

    @property
    def weights(self) -> Any:
        return self.device._weights

    def poison(self) -> None:
        """What no weights are (NaN) in all memory that is free."""
        arena, free = self.weights.arena, self.weights._extents
        for begin, length in zip(free._begins, free._lengths, strict=True):
            arena.memory[begin : begin + length] = b"\xff" * length
