"""A small v2 server in a thread: answers as slowly, or as unwillingly, as a test wants."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Callable
from dataclasses import dataclass, field

METADATA = {
    "name": "echo",
    "versions": ["1"],
    "platform": "test",
    "inputs": [
        {"name": "x", "datatype": "FP32", "shape": [-1, 4]},
        {"name": "ids", "datatype": "INT64", "shape": [-1, -1]},
    ],
    "outputs": [{"name": "y", "datatype": "FP32", "shape": [-1, 4]}],
}
CONFIG = {
    "name": "echo",
    "max_batch_size": 8,
    "parameters": {"slo_ms": {"string_value": "250"}, "sample.ids": {"string_value": "[12]"}},
}


@dataclass(frozen=True)
class Behaviour:
    """What the server does with the n-th call (from 0): waits, then answers or hangs up."""

    delay_s: float = 0.0
    status: int = 200
    body: bytes = b"\x00" * 16
    chunked: bool = False


@dataclass
class FakeServer:
    """``behave`` decides by the number of the call; ``bodies`` keeps what was received."""

    behave: Callable[[int], Behaviour] = lambda call: Behaviour()
    texts: dict[str, str] = field(default_factory=dict)
    bodies: list[bytes] = field(default_factory=list)
    paths: list[str] = field(default_factory=list)
    port: int = 0
    key: str = ""

    def __enter__(self) -> FakeServer:
        self._loop = asyncio.new_event_loop()
        started = threading.Event()
        self._thread = threading.Thread(target=self._main, args=(started,))
        self._thread.start()
        assert started.wait(10)
        return self

    def __exit__(self, *error: object) -> None:
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join(10)
        assert not self._thread.is_alive()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def _main(self, started: threading.Event) -> None:
        self._loop.run_until_complete(self._serve(started))
        self._loop.close()

    async def _serve(self, started: threading.Event) -> None:
        self._stop = asyncio.Event()
        self._clients: set[asyncio.StreamWriter] = set()
        server = await asyncio.start_server(self._client, "127.0.0.1", 0)
        self.port = server.sockets[0].getsockname()[1]
        started.set()
        await self._stop.wait()
        server.close()
        for writer in self._clients:
            writer.close()
        tasks = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _client(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._clients.add(writer)
        try:
            while True:
                await self._call(reader, writer)
        except (asyncio.IncompleteReadError, ConnectionError, asyncio.CancelledError):
            writer.close()
        finally:
            self._clients.discard(writer)

    async def _call(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        method, path = head.split()[:2]
        if self.key and f"x-api-key: {self.key}\r\n" not in head.lower():
            self._reply(writer, 401, b'{"error": "no key"}')
            return
        if method == "GET" or path.startswith("/v2/fleet"):
            self._reply(writer, *self._get(path))
            return
        length = int(head.lower().split("content-length: ")[-1].split("\r\n")[0])
        self.bodies.append(await reader.readexactly(length))
        self.paths.append(path)
        behaviour = self.behave(len(self.bodies) - 1)
        await asyncio.sleep(behaviour.delay_s)
        if behaviour.status < 0:
            raise ConnectionError("hangs up")
        self._reply(writer, behaviour.status, behaviour.body, behaviour.chunked)

    def _get(self, path: str) -> tuple[int, bytes]:
        if path in self.texts:
            return 200, self.texts[path].encode()
        known = {"/v2/models/echo": METADATA, "/v2/models/echo/config": CONFIG}
        known |= {path.replace("echo", "other"): said for path, said in known.items()}
        if path in known:
            return 200, json.dumps(known[path]).encode()
        return 404, b'{"error": "Request for unknown model: it is not found"}'

    def _reply(
        self, writer: asyncio.StreamWriter, status: int, body: bytes, chunked: bool = False
    ) -> None:
        framing = f"Content-Length: {len(body)}\r\n\r\n".encode() + body
        if chunked:
            framing = b"Transfer-Encoding: chunked\r\n\r\n%x\r\n%b\r\n0\r\n\r\n" % (len(body), body)
        writer.write(f"HTTP/1.1 {status} X\r\n".encode() + framing)
