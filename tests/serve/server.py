"""A whole server as a subprocess on free ports, and a small client."""

from __future__ import annotations

import http.client
import json
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from bench.attack.stand import Stand

#: Kills its own process for one poisonous input; samples never hold such a value.
CRASH = "import os; (x.max() > 1e6) and os.kill(os.getpid(), 9)"
SLEEP = "time.sleep(0.03)"
#: A first start measures in a quarter of the time, as the load of one more model does.
HASTE = "import interlace.control.model_preparer as made; made.THOROUGH = made.QUICK; "
#: Between a caller's requests: what is to happen meanwhile needs the cores, too.
PAUSE_S = 0.005


class Server(Stand):
    """`interlace serve` until ``stop``, with a client."""

    answer_s = 100.0  #: how long a request may take
    code = HASTE + Stand.code

    def __init__(self, root: Path, cache: Path, *options: str) -> None:
        super().__init__(root, cache / "profiles", *options)

    def call(self, method: str, path: str, body: object = None) -> tuple[int, Any]:
        connection = http.client.HTTPConnection("127.0.0.1", self.http_port, timeout=self.answer_s)
        try:
            data = None if body is None else json.dumps(body)
            connection.request(method, path, data)
            response = connection.getresponse()
            text = response.read().decode()
        finally:
            connection.close()
        is_json = "json" in (response.getheader("Content-Type") or "")
        return response.status, json.loads(text) if is_json and text else text

    def infer(self, model: str, value: float = 1.0, **parameters: float) -> tuple[int, Any]:
        tensor = {"name": "x", "datatype": "FP32", "shape": [1, 4], "data": [value] * 4}
        body: Mapping[str, object] = {"inputs": [tensor], "parameters": parameters}
        return self.call("POST", f"/v2/models/{model}/infer", body)

    def end(self, limit_s: float = 40.0) -> int:
        """Its exit status; nothing of it is left."""
        ended = self.stop(limit_s)
        assert not ended["left_processes"], "a process of the server outlived it"
        return int(ended["exit"])

    def kill(self) -> None:
        """However a test ended, nothing of the server stays."""
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait(10.0)
        self._reader.join(10.0)
        assert not self._reader.is_alive(), "a process of the server outlived it"
        if self.process.stdout is not None:
            self.process.stdout.close()


class Traffic:
    """Threads that call one model again and again; ``stop`` gives every (status, body)."""

    def __init__(self, call: Callable[[], tuple[int, Any]], threads: int = 4) -> None:
        self.seen: list[tuple[int, Any]] = []
        self._call = call
        self._on = True
        self._threads = [threading.Thread(target=self._run, daemon=True) for _ in range(threads)]
        for thread in self._threads:
            thread.start()

    def wait_for(self, count: int, limit_s: float = 100.0) -> None:
        """Until that many more answers have come."""
        goal, ends_s = len(self.seen) + count, time.monotonic() + limit_s
        while len(self.seen) < goal:
            assert time.monotonic() < ends_s, f"only {len(self.seen)} of {goal} answers came"
            time.sleep(0.005)

    def stop(self, limit_s: float = 110.0) -> list[tuple[int, Any]]:
        self._on = False
        for thread in self._threads:
            thread.join(limit_s)
            assert not thread.is_alive(), "a request was never answered"
        return self.seen

    def _run(self) -> None:
        while self._on:
            self.seen.append(self._call())
            time.sleep(PAUSE_S)
