"""A whole HTTP server over the fake runtime, in a thread of its own."""

import asyncio
import socket
import threading
from collections.abc import Callable
from typing import Any, Self

import uvloop

from interlace.core.model import Model
from interlace.repository.config_json import config_json
from interlace.repository.model_config import ModelConfig
from interlace.server.administration.api import AdminApi
from interlace.server.api_keys import ApiKeys
from interlace.server.body_decoder import BodyDecoder
from interlace.server.dataplane.inference import InferenceContext
from interlace.server.dataplane.plane import DataPlane
from interlace.server.http.inference_handler import InferenceHandler
from interlace.server.http.request_head import Origins
from interlace.server.http.server import HttpServer, all_routes
from interlace.server.limits import HttpLimits
from interlace.server.model_table import ModelTable, ServedModel
from interlace.server.shared_memory import Regions
from interlace.server.tls import FollowedContext
from tests.server.fakes import FakeControl, FakeRuntime, Memory


class LoopThread:
    """A thread with a loop of its own, for a server whose HTTP is at ``port``."""

    port: int
    parts: Any

    def __init__(self) -> None:
        self.loop = uvloop.new_event_loop()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        asyncio.set_event_loop(self.loop)
        self.loop.run_forever()

    def wait(self, awaitable: Any) -> Any:
        return asyncio.run_coroutine_threadsafe(awaitable, self.loop).result(20)

    def do(self, call: Callable[[], Any]) -> Any:
        """Run something on the loop."""

        async def run() -> Any:
            return call()

        return self.wait(run())

    def connect(self) -> socket.socket:
        connection = socket.create_connection(("127.0.0.1", self.port), timeout=10)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return connection

    @property
    def used_bytes(self) -> int:
        """Bytes of the arena in use."""
        return int(self.do(lambda: self.parts.memory.arena.used_bytes))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        self.wait(self.parts.http.close(grace_s=0.5))
        self.stop()
        self.parts.memory.close()

    def stop(self) -> None:
        """End the thread."""
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join(10)
        self.loop.close()


class Parts:
    """Everything of one server. Made on its loop."""

    def __init__(
        self, limits: HttpLimits, keys: ApiKeys, origins: Origins, regions: Regions
    ) -> None:
        self.memory = Memory()
        self.runtime = FakeRuntime()
        self.table = ModelTable()
        self.control = FakeControl()
        self.regions = regions
        self.plane = DataPlane(self.runtime, self.table, self.memory.map)
        self.admin = AdminApi(self.plane, self.table, self.control, self.runtime.clock, regions)
        arena, bodies = self.memory.arena, BodyDecoder(self.memory.arena)
        context = InferenceContext(self.plane, self.table, arena, self.memory.map, regions, bodies)
        self.inference = InferenceHandler(context, limits)
        self.metrics = "# nothing\n"
        routes = all_routes(self.admin, lambda: self.metrics)
        self.http = HttpServer(routes, self.inference, limits, keys, origins)

    def publish(self, *models: Model) -> None:
        for model in models:
            self.table.publish(ServedModel(model, config=config_json(model, ModelConfig())))


class Stand(LoopThread):
    """Runs a server until closed; ``do`` runs something on its loop."""

    parts: Parts

    def __init__(
        self,
        limits: HttpLimits | None = None,
        keys: ApiKeys | None = None,
        origins: Origins | None = None,
        regions: Regions | None = None,
        tls: FollowedContext | None = None,
    ) -> None:
        super().__init__()
        given = (
            limits or HttpLimits(), keys or ApiKeys(), origins or Origins(), regions or Regions()
        )  # fmt: skip
        self.parts = self.do(lambda: Parts(*given))
        self.port = self.wait(self.parts.http.listen("127.0.0.1", 0, tls))

    def publish(self, *models: Model) -> None:
        self.do(lambda: self.parts.publish(*models))

    def close(self) -> None:
        super().close()
        self.parts.regions.close()
