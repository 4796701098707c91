"""A device made of a latency formula, and an arena made of a bytearray."""

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from typing import TypeVar

from interlace.core.errors import ServeError
from interlace.core.hardware import Gpu, Trait
from interlace.core.messages import (
    CreatePartition,
    Failure,
    Load,
    PartitionLost,
    ReleasePartition,
    Run,
    Unload,
    Work,
    WorkFinished,
)
from interlace.core.model import Format, Model, ServiceTerms
from interlace.core.request import Timing
from interlace.core.tensor import Signature, TensorSpec
from interlace.runtime.clock import SimClock

T = TypeVar("T")
GPU = Gpu("cpu0", "cpu", 2, 1 << 30, (50, 100), frozenset({Trait.OVERLAPPED_REORGANISATION}))


def latency_ms(rows: int, share_pct: int) -> float:
    return 1.0 + 10.0 * rows * 100 / share_pct


def make_model(name: str = "cnn", max_batch: int = 4, slo_ms: float = 1000.0) -> Model:
    spec = TensorSpec("x", "FP32", (-1, 3))
    return Model(
        name=name,
        version=1,
        format=Format.ONNX,
        path="/nowhere",
        digest=f"digest-of-{name}",
        signature=Signature((spec,), (spec,), batched=True, max_batch=max_batch),
        terms=ServiceTerms(slo_ms=slo_ms),
        sample={"x": (5, 3)},
    )


@dataclass
class FakeArena:
    """Hands out up to ``limit`` blocks."""

    limit: int = 1000
    number: int = 7
    blocks: dict[int, bytearray] = field(default_factory=dict)

    def alloc(self, nbytes: int) -> int | None:
        if len(self.blocks) >= self.limit:
            return None
        offset = 64 * (max(self.blocks, default=0) // 64 + 1 + nbytes // 64)
        self.blocks[offset] = bytearray(nbytes)
        return offset

    def free(self, offset: int) -> None:
        del self.blocks[offset]

    def view(self, offset: int, nbytes: int) -> memoryview:
        return memoryview(self.blocks[offset])[:nbytes]


@dataclass
class FakeDevice:
    """Keeps the contract of a device in virtual time; ``fail`` says which work fails, and how."""

    clock: SimClock
    gpu: Gpu = GPU
    fail: Callable[[Work], Failure | ServeError | None] = lambda work: None
    log: list[Work] = field(default_factory=list)
    partitions: dict[str, int] = field(default_factory=dict)
    loaded: set[tuple[str, str]] = field(default_factory=set)
    freed: list[int] = field(default_factory=list)
    slower: Callable[[int], float] = lambda run: 0.0  #: ms that the n-th run takes on top
    runs: int = 0

    def register(self, model: Model) -> None: ...
    def forget(self, key: str) -> None: ...
    def on_event(self, lost: Callable[[PartitionLost], None]) -> None: ...
    def close(self) -> None: ...
    def cancel_run(self, work: object) -> None: ...
    def cancel_fetch(self, model: str) -> None: ...

    def free(self, batch: int) -> None:
        self.freed.append(batch)

    def do(self, work: Work, done: Callable[[WorkFinished], None]) -> None:
        self.log.append(work)
        failure = self.fail(work)
        if failure is not None and failure.detail == "hang":
            return
        if isinstance(failure, ServeError):  # of each request
            finished, after_ms = WorkFinished(work, errors=(failure,)), 1.0
        elif failure is not None:
            finished, after_ms = WorkFinished(work, failure=failure), 1.0
        else:
            finished, after_ms = self._carry_out(work)
        self.clock.call_at(self.clock.now_ms() + after_ms, lambda: done(finished))

    def _carry_out(self, work: Work) -> tuple[WorkFinished, float]:
        match work:
            case CreatePartition(partition=partition, share_pct=share_pct):
                self.partitions[partition] = share_pct
                return WorkFinished(work, units=(0,)), 50.0
            case ReleasePartition(partition=partition):
                del self.partitions[partition]
                return WorkFinished(work), 1.0
            case Load(partition=partition, model=model, batches=batches):
                assert partition in self.partitions
                self.loaded.add((partition, model))
                return WorkFinished(work, resident_bytes=1000 + 10 * sum(batches)), 30.0
            case Unload(partition=partition, model=model):
                self.loaded.remove((partition, model))
                return WorkFinished(work), 1.0
            case Run(partition=partition, batch=batch):
                assert (partition, batch.model) in self.loaded
                took_ms = latency_ms(batch.rows, self.partitions[partition])
                took_ms += self.slower(self.runs)
                self.runs += 1
                timing = Timing(input_ms=1.0, infer_ms=took_ms - 1.5, batch_rows=batch.rows)
                return WorkFinished(work, timing=timing), took_ms
        raise AssertionError(work)


async def _pump(clock: SimClock) -> None:
    while True:
        clock.run()
        await asyncio.sleep(0)


def in_virtual_time(clock: SimClock, work: Coroutine[None, None, T]) -> T:
    """Run a coroutine while the clock's calls are made as fast as they can be."""

    async def main() -> T:
        pump = asyncio.ensure_future(_pump(clock))
        try:
            return await work
        finally:
            pump.cancel()

    return asyncio.run(main())
