"""A runtime without an engine: replies that the test, or the next turn of the loop, gives."""

import asyncio
import os
import time
from collections.abc import Callable, Sequence

from interlace.core.errors import ServeError
from interlace.core.model import Format, Model, ServiceTerms
from interlace.core.request import Callbacks, Outcome, Reply, Request, Timing
from interlace.core.tensor import Signature, Span, Tensor, TensorSpec
from interlace.runtime.clock import WallClock
from interlace.server.administration.api import IndexEntry
from interlace.shm.arena import Arena, ArenaMap

Answer = Callable[[Reply], None]
#: What a model does: inputs to outputs; an output may lie where an input does.
Run = Callable[[tuple[Tensor, ...]], tuple[Tensor, ...]]


def identity(inputs: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    """Every input under the name of an output, in place: INPUT0 becomes OUTPUT0."""
    return tuple(t._replace(name=t.name.replace("INPUT", "OUTPUT")) for t in inputs)


class FakeRuntime:
    """Answers on the next turn of the loop, unless ``hold`` keeps the answers back."""

    def __init__(self) -> None:
        self.clock = WallClock(asyncio.get_running_loop())
        self.hold = False
        self.held: list[tuple[Request, Answer]] = []
        self.give_ups: dict[int, Callable[[ServeError], None] | None] = {}
        self.cancels = True  #: a cancelled request that is held is answered at once
        self.cancelled: list[Request] = []
        self.delivered_replies: list[Reply] = []
        self.requests = 0
        self.changes = 0
        self.refused_unasked: list[tuple[str, int]] = []
        self.runs: dict[str, Run] = {}
        self.errors: dict[str, ServeError] = {}
        self._ids = 0
        self._call_soon = asyncio.get_running_loop().call_soon

    def next_id(self) -> int:
        self._ids += 1
        return self._ids

    def submit(self, request: Request, caller: Callbacks) -> None:
        self.requests += 1
        if self.hold:
            self.give_ups[request.id] = caller.on_timeout
            self.held.append((request, caller.on_reply))
        else:
            self._call_soon(self._answer, request, caller.on_reply)

    def cancel(self, request: Request) -> None:
        self.cancelled.append(request)
        for entry in list(self.held):
            if self.cancels and entry[0] is request:
                self.held.remove(entry)
                entry[1](Reply(request, Outcome.CANCELLED))

    def count_refused(self, model: str, rows: int) -> None:
        self.refused_unasked.append((model, rows))

    def delivered(self, reply: Reply) -> None:
        if len(self.delivered_replies) < 10_000:
            self.delivered_replies.append(reply)

    def release(self) -> None:
        """Answer everything that was held back."""
        held, self.held = self.held, []
        for request, answer in held:
            self._answer(request, answer)

    def _answer(self, request: Request, answer: Answer) -> None:
        name = request.model.partition("/")[0]
        error = self.errors.get(name)
        if error is not None:
            answer(Reply(request, Outcome.REFUSED, error=error))
            return
        outputs = self.runs.get(name, identity)(request.inputs)
        timing = Timing(0.1, 0.2, 0.3, 0.1, request.rows)
        answer(Reply(request, Outcome.OK, outputs, None, timing, request.id))


class FakeControl:
    """A repository of what the table holds; load and unload are written down."""

    def __init__(self) -> None:
        self.entries: list[IndexEntry] = []
        self.calls: list[tuple[object, ...]] = []
        self.is_ready = True
        self.error: ServeError | None = None

    def index(self, ready_only: bool = False) -> Sequence[IndexEntry]:
        return [e for e in self.entries if e.state == "READY" or not ready_only]

    async def load(
        self, name: str, config: str | None = None, files: object = None, caller: str = ""
    ) -> None:
        await asyncio.sleep(0)
        self.calls.append(("load", name, config, files))
        if self.error is not None:
            raise self.error

    async def unload(self, name: str, caller: str = "") -> None:
        await asyncio.sleep(0)
        self.calls.append(("unload", name))

    def ready(self) -> bool:
        return self.is_ready


def model(
    name: str,
    inputs: Sequence[TensorSpec],
    outputs: Sequence[TensorSpec],
    max_batch: int = 8,
    batched: bool = True,
    slo_ms: float = 1000.0,
    labels: dict[str, tuple[str, ...]] | None = None,
    version: int = 1,
    generation: int = 0,
) -> Model:
    """A model that exists only in the table."""
    signature = Signature(tuple(inputs), tuple(outputs), batched, max_batch)
    return Model(
        name=name,
        version=version,
        format=Format.ONNX,
        path="",
        digest="0",
        signature=signature,
        terms=ServiceTerms(slo_ms),
        labels=labels or {},
        generation=generation,
    )


def one_to_one(
    name: str, datatype: str = "FP32", dims: tuple[int, ...] = (-1,), **terms: object
) -> Model:
    """A model with INPUT0 and OUTPUT0 of the same type and dims."""
    return model(
        name,
        [TensorSpec("INPUT0", datatype, dims)],
        [TensorSpec("OUTPUT0", datatype, dims)],
        **terms,  # type: ignore[arg-type]
    )


class Memory:
    """An arena with its map, and tensors in it."""

    def __init__(self, size_bytes: int = 1 << 26) -> None:
        self.arena = Arena.create(size_bytes)
        self.map = ArenaMap(os.getpid())
        self.map.add(self.arena)

    def put(self, name: str, datatype: str, shape: tuple[int, ...], data: bytes) -> Tensor:
        offset = self.arena.alloc(max(1, len(data)))
        assert offset is not None
        self.arena.view(offset, len(data))[:] = data
        return Tensor(name, datatype, shape, Span(self.arena.number, offset, len(data)))

    def close(self) -> None:
        self.map.close()
        self.arena.close()


def wait_until(true: Callable[[], bool], within_s: float = 60.0) -> None:
    """Return once that is true; fail if it never is."""
    ends = time.monotonic() + within_s
    while not true():
        assert time.monotonic() < ends, "it did not become true"
        time.sleep(0.01)
