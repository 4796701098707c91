"""A gRPC server over a data plane that echoes, on an event loop in a thread of its own."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable
from typing import Any

import grpc

from interlace.core.errors import Reason, ServeError
from interlace.core.request import Callbacks, Outcome, Reply, Request
from interlace.core.tensor import Span, Tensor
from interlace.proto.messages import ModelInferResponse, ModelStreamInferResponse
from interlace.runtime.clock import WallClock
from interlace.server.administration.api import AdminApi
from interlace.server.api_keys import ApiKeys
from interlace.server.body_decoder import BodyDecoder
from interlace.server.dataplane.call import InferenceCall
from interlace.server.dataplane.inference import InferenceContext
from interlace.server.dataplane.plane import OnError
from interlace.server.grpc.infer_calls import LocalInference
from interlace.server.grpc.server import GrpcServer
from interlace.server.limits import GrpcLimits
from interlace.server.model_table import ModelTable
from interlace.server.shared_memory import Regions
from interlace.server.tls import FollowedContext
from interlace.shm.arena import Arena, ArenaMap
from tests.server.fakes import FakeControl, Memory, wait_until
from tests.server.grpc.wirebench import INFER, STREAM
from tests.server.stand import LoopThread


class EchoPlane:
    """Answers by the model's name.

    ``echo`` gives each input back as OUTPUT..., at once; ``slow-MS`` after that time; ``never``
    when it is cancelled; ``refuse-REASON`` refuses, ``final-REASON`` for every node; ``fail`` fails
    after it was accepted;
    ``hang`` is given up, and its answer comes 100 ms later; ``apart`` answers from an arena made
    for this answer alone, as a worker that dies after it would. Nothing is answered while it
    ``holds``.
    """

    def __init__(self, arenas: ArenaMap) -> None:
        self.accepting = True
        self.holds = False
        self._arenas = arenas
        self._apart: dict[int, Arena] = {}
        self.calls: list[InferenceCall] = []
        self.cancelled: list[int] = []
        self.undelivered: set[int] = set()
        self._waiting: dict[int, Callable[[Outcome], None]] = {}
        self._next = 0

    @property
    def in_flight(self) -> int:
        return len(self._waiting)

    @property
    def busy(self) -> list[int]:
        """Calls without an answer, and answers not delivered."""
        return [*self._waiting, *self.undelivered]

    def infer(self, call: InferenceCall, caller: Callbacks, on_error: OnError) -> Request | None:
        self.calls.append(call)
        if call.model.startswith(("refuse-", "final-")):
            reason = Reason(call.model.partition("-")[2])
            after_ms = 12.4 if call.model.startswith("refuse-") else math.inf
            on_error(ServeError(reason, f"refused: {reason.value} 100% é", retry_after_ms=after_ms))
            return None
        self._next += 1
        key = f"{call.model}/{call.version or 3}#1"
        request = Request(self._next, key, 0.0, 1e9, inputs=call.inputs)

        def answer(outcome: Outcome = Outcome.OK) -> None:
            if self._waiting.pop(request.id, None) is None:
                return
            self.undelivered.add(request.id)
            outputs = call.inputs if outcome is Outcome.OK else ()
            if call.model == "apart":
                outputs = self._moved(request.id, outputs)
            renamed = tuple(Tensor(t.name.replace("INPUT", "OUTPUT"), *t[1:]) for t in outputs)
            caller.on_reply(Reply(request, outcome, renamed, batch=request.id))

        self._waiting[request.id] = answer
        if self.holds or call.model == "never":
            return request
        if call.model.startswith("slow-"):
            delay_s = float(call.model.removeprefix("slow-")) / 1000.0
            asyncio.get_running_loop().call_later(delay_s, answer)
        elif call.model == "hang":
            loop = asyncio.get_running_loop()
            assert caller.on_timeout is not None
            loop.call_soon(caller.on_timeout, ServeError(Reason.DEADLINE, "it hangs"))
            loop.call_later(0.1, answer)
        elif call.model == "fail":
            answer(Outcome.FAILED)
        else:
            answer()
        return request

    def cancel(self, request: Request) -> None:
        self.cancelled.append(request.id)
        waiting = self._waiting.get(request.id)
        if waiting is not None:
            asyncio.get_running_loop().call_soon(waiting, Outcome.CANCELLED)

    def delivered(self, reply: Reply) -> None:
        self.undelivered.remove(reply.request.id)
        arena = self._apart.pop(reply.request.id, None)
        if arena is not None:
            self._arenas.forget(arena.number)
            arena.close()

    def _moved(self, number: int, tensors: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        arena = self._apart[number] = Arena.create(1 << 16)
        self._arenas.add(arena)
        moved = []
        for tensor in tensors:
            offset = arena.alloc(tensor.span.nbytes)
            assert offset is not None
            arena.view(offset, tensor.span.nbytes)[:] = self._arenas.view(tensor.span)
            moved.append(tensor._replace(span=Span(arena.number, offset, tensor.span.nbytes)))
        return tuple(moved)


class Main(LoopThread):
    """The server, with real administration, on the loop of its thread."""

    def __init__(
        self,
        keys: ApiKeys | None = None,
        arena_bytes: int = 128 << 20,
        limits: GrpcLimits | None = None,
        tls: FollowedContext | None = None,
    ) -> None:
        super().__init__()
        self.memory = Memory(arena_bytes)
        self.arena = self.memory.arena
        self.plane = EchoPlane(self.memory.map)
        self.control = FakeControl()
        self.regions = Regions(allowed=True)
        self.server: GrpcServer = self.do(lambda: self._made(limits or GrpcLimits(), keys))
        self.port = self.wait(self.server.listen("127.0.0.1", 0, tls))

    def _made(self, limits: GrpcLimits, keys: ApiKeys | None) -> GrpcServer:
        plane: Any = self.plane
        table, clock = ModelTable(), WallClock(self.loop)
        api = AdminApi(plane, table, self.control, clock, self.regions)
        self.bodies = BodyDecoder(self.arena)
        context = InferenceContext(
            plane, table, self.arena, self.memory.map, self.regions, self.bodies
        )
        return GrpcServer(LocalInference(context, limits), api, keys)

    @property
    def target(self) -> str:
        return f"127.0.0.1:{self.port}"

    def settled(self) -> None:
        """Wait until no call is in flight, every output was delivered, and the arena is empty.

        The process that reads heads gets only the time of a core that nobody else wants.
        """
        wait_until(lambda: not self.plane.busy and not self.arena.used_bytes, 120.0)

    def close(self) -> None:
        self.do(self.server.close)
        self.do(self.bodies.close)
        for _ in range(20):
            self.do(lambda: None)  # calls that were cancelled are answered in a later turn
        self.stop()
        self.regions.close()
        self.memory.close()


def client(port: int, **options: Any) -> grpc.Channel:
    """A client with a connection of its own, which bounds no message."""
    given = [
        ("grpc.use_local_subchannel_pool", 1),
        ("grpc.max_receive_message_length", -1),
        ("grpc.max_send_message_length", -1),
    ]
    return grpc.insecure_channel(f"127.0.0.1:{port}", given, **options)


def unary(channel: grpc.Channel) -> Any:
    """ModelInfer, whose requests are bytes."""
    return channel.unary_unary(
        INFER, response_deserializer=ModelInferResponse.FromString, _registered_method=False
    )


def streaming(channel: grpc.Channel) -> Any:
    """ModelStreamInfer, whose requests are bytes."""
    return channel.stream_stream(
        STREAM, response_deserializer=ModelStreamInferResponse.FromString, _registered_method=False
    )
