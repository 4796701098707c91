"""Mixed traffic for long: what the server holds and how late it answers, minute by minute."""

import random
import socket
import threading
import time
from contextlib import suppress
from typing import Any, Final

from bench.attack.attack import OTHER, VICTIM, Ground, Result
from bench.attack.bystander import MODEL
from bench.attack.calls import HttpCaller, message
from bench.attack.stand import Stand
from bench.attack.traffic import Traffic

#: Length at scale 1.
MINUTES: Final = 60.0
_SAMPLES: Final = 240
_RATE_RPS: Final = 120.0
#: What may still grow once a quarter of the time has passed.
_GROWTH_MB: Final = 10.0


def soak(ground: Ground, stand: Stand) -> Result:
    """HTTP, gRPC, streams, vanishing clients, probes and index calls, all at once."""
    length_s = ground.scale * MINUTES * 60
    end = threading.Event()
    ports = (stand.http_port, stand.grpc_port)
    others = [
        threading.Thread(target=act, args=(stand, end), daemon=True)
        for act in (_vanish, _stream, _look)
    ]
    points: list[dict[str, Any]] = []
    began_s = time.monotonic()
    with Traffic(ports, [MODEL, VICTIM, OTHER], (3, 3), _RATE_RPS, ground.seed) as traffic:
        for thread in others:
            thread.start()
        while (gone_s := time.monotonic() - began_s) < length_s:
            since_s = time.monotonic()
            time.sleep(max(1.0, length_s / _SAMPLES))
            found = traffic.figures(since_s)
            points.append({"minutes": round(gone_s / 60, 2), **stand.held(), **found})
        end.set()
    for thread in others:
        thread.join(10)
    result = Result(len(traffic.answers), traffic.bad(), {**traffic.figures(), "points": points})
    _flat(result, points)
    return result


def _flat(result: Result, points: list[dict[str, Any]]) -> None:
    """From a quarter of the time to its end: memory and descriptors that grow, and by how much.

    Memory is RSS: Pss changes with every other program on the machine that shares a library.
    """
    quarter = points[len(points) // 4 :]
    half = max(1, len(quarter) // 4)
    for name, most in (("rss_mb", _GROWTH_MB), ("main_descriptors", 5)):
        first = sum(one[name] for one in quarter[:half]) / half
        last = sum(one[name] for one in quarter[-half:]) / half
        result.figures[f"{name}_grown"] = round(last - first, 2)
        result.broken[f"{name} grown by {last - first:.1f}"] += last - first > most


def _vanish(stand: Stand, end: threading.Event) -> None:
    """Clients that go away in the middle of a request or before its answer."""
    random_ = random.Random(7)
    text = (
        b"POST /v2/models/victim/infer HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 72\r\n\r\n"
        b'{"inputs":[{"name":"x","datatype":"FP32","shape":[1,4],"data":[1,2,3,4]}]}'
    )
    while not end.wait(0.4):
        with suppress(OSError), socket.create_connection(("127.0.0.1", stand.http_port)) as sock:
            sock.sendall(text[: random_.randrange(len(text))])
        with suppress(OSError), socket.create_connection(("127.0.0.1", stand.grpc_port)) as sock:
            sock.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"[: random_.randrange(24)])


def _stream(stand: Stand, end: threading.Event) -> None:
    """Streams of eight calls each, every other one cancelled before its end."""
    import grpc

    request = message(VICTIM.model, [1.0, 2.0, 3.0, 4.0])
    with grpc.insecure_channel(f"127.0.0.1:{stand.grpc_port}") as channel:
        open_stream = channel.stream_stream(
            "/inference.GRPCInferenceService/ModelStreamInfer",
            request_serializer=bytes,
            response_deserializer=bytes,
        )
        turn = 0
        while not end.wait(0.5):
            turn += 1
            with suppress(grpc.RpcError):
                answers = open_stream(iter([request] * 8), timeout=20)
                for number, _ in enumerate(answers):
                    if turn % 2 and number == 3:
                        answers.cancel()


def _look(stand: Stand, end: threading.Event) -> None:
    """Probes, metrics and the index, as monitoring asks for them."""
    caller = HttpCaller(stand.http_port)
    while not end.wait(2.0):
        with suppress(OSError):
            stand.get("/metrics", metrics=True)
            stand.get("/v2/health/ready")
            caller.post("/v2/repository/index", b"{}")
