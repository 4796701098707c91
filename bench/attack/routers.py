"""A router between nodes that lie and clients that want more than their own."""

import re
import socket
import struct
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from typing import Final

from bench.attack.attack import VICTIM, Ground, Result
from bench.attack.bystander import MODEL, Bystander
from bench.attack.calls import GrpcCaller, body, message
from bench.attack.http2 import HELLO, frame, head
from bench.attack.lying import ENDS, REPLIES, SILENT, LyingNode, adjacent_ports
from bench.attack.stand import RoutedStand, Stand
from bench.attack.wire import run_flood

#: A request to a node that lies ends after its SLO (80 ms) and a margin of 1 s.
_ENDS_S: Final = 3.0
_READ_S: Final = 12.0
#: The part of the bystander's calls that may be refused on a machine that attackers share.
_REFUSED: Final = 0.05
_HEAD: Final = re.compile(
    rb"HTTP/1\.1 (?!204|205|304)[2-5]\d\d [^\r\n\0]*\r\n(?:[!-9;-~]+: ?[^\r\n\0]*\r\n)*\r\n"
)
#: 60 MiB as a varint.
_SIZE: Final = b"\x80\x80\x80\x1e"
_INFER: Final = "/v2/models/%s/infer"


def router(ground: Ground) -> Result:
    """Each lie and each attack beside the bystander, through one router."""
    result = Result(0)
    port = adjacent_ports()
    ports = ("--http-port", str(port), "--grpc-port", str(port + 1))
    liar = LyingNode()
    with ExitStack() as ends:
        ends.callback(liar.close)
        honest = Stand(ground.repository(), ground.folder / "profiles", *ports)
        ends.callback(honest.stop)
        honest.wait_ready()
        routed = RoutedStand({"honest": port, "liar": liar.port})
        ends.callback(routed.stop)
        routed.wait_ready()
        wait_served(routed, MODEL.model, SILENT)
        with Bystander(routed) as quiet:
            time.sleep(5.0)
        result.figures["quiet"] = quiet.figures
        for what, act in _ACTS.items():
            with Bystander(routed) as beside:
                tried, broken = act(routed, max(2.0, 5.0 * ground.scale))
            result.tried += tried
            result.broken[what] += broken
            beside.blame(result.broken, f"{what}: ")
            statuses = beside.figures["statuses"]
            refused = sum(statuses.values()) - statuses.get("200", 0) - statuses.get("OK", 0)
            if refused > _REFUSED * beside.figures["calls"]:
                result.broken[f"{what}: bystander refused"] += refused
            result.figures[what] = beside.figures
    return result


def wait_served(routed: Stand, *models: str) -> None:
    """Return once a router has those models.

    Raises:
        TimeoutError: it has not after 30 s.
    """
    ends_s = time.monotonic() + 30.0
    while any(routed.get(f"/v2/models/{model}/ready")[0] != 200 for model in models):
        if time.monotonic() > ends_s:
            raise TimeoutError("the router serves no models")
        time.sleep(0.1)


def _lies(routed: RoutedStand, seconds: float) -> tuple[int, int]:
    """Requests to the node that lies: each has a well-formed answer in time."""
    models = [*REPLIES, *ENDS, SILENT] * 3
    with ThreadPoolExecutor(20) as pool:
        by_http = list(pool.map(lambda model: answered_http(routed.http_port, model), models))
        by_grpc = list(pool.map(lambda model: answered_grpc(routed.grpc_port, model), models))
    return 2 * len(models), by_http.count(False) + by_grpc.count(False)


def answered_http(port: int, model: str) -> bool:
    """Whether a request has one well-formed answer in time."""
    data = body([1.0, 2.0, 3.0, 4.0])
    start = f"POST {_INFER % model} HTTP/1.1\r\nHost: a\r\nConnection: close\r\n"
    began_s, got = time.monotonic(), b""
    with socket.create_connection(("127.0.0.1", port), timeout=_READ_S) as connection:
        connection.sendall(f"{start}Content-Length: {len(data)}\r\n\r\n".encode() + data)
        try:
            while piece := connection.recv(1 << 16):
                got += piece
        except OSError:
            return False
    found = _HEAD.match(got)
    if found is None or time.monotonic() - began_s > _ENDS_S:
        return False
    lengths = re.findall(rb"(?i)\r\ncontent-length: ?(\d+)(?=\r\n)", found[0])
    if len(lengths) != 1 or b"\r\ntransfer-encoding:" in found[0].lower():
        return False
    return int(lengths[0]) == len(got) - found.end()


def answered_grpc(port: int, model: str) -> bool:
    """Whether a call ends in time, and not as if it had an answer."""
    caller = GrpcCaller(port, _READ_S)
    began_s = time.monotonic()
    status = caller.send(message(model, [1.0, 2.0, 3.0, 4.0]))
    caller.close()
    return status != "OK" and time.monotonic() - began_s < _ENDS_S


def _announced(routed: RoutedStand, seconds: float) -> tuple[int, int]:
    """Bodies of 255 MB that do not come."""
    start = f"POST {_INFER % VICTIM.model} HTTP/1.1\r\nHost: a\r\n"
    start += "Inference-Header-Content-Length: 4\r\nContent-Length: 255000000\r\n\r\n"
    with ExitStack() as ends:
        for _ in range(64):
            connection = socket.create_connection(("127.0.0.1", routed.http_port))
            ends.enter_context(connection).sendall(start.encode())
        data = bytes(4 << 20)  # its memory is asked for beside them
        given = f"POST {_INFER % VICTIM.model} HTTP/1.1\r\nHost: a\r\nConnection: close\r\n"
        given += f"Inference-Header-Content-Length: 4\r\nContent-Length: {len(data)}\r\n\r\n"
        other = socket.create_connection(("127.0.0.1", routed.http_port), timeout=_READ_S)
        ends.enter_context(other).sendall(given.encode() + data)
        status = other.recv(12)[9:]
        time.sleep(seconds)
    return 65, int(status in (b"429", b"503", b""))


def _named_twice(routed: RoutedStand, seconds: float) -> tuple[int, int]:
    """Calls of the bystander's model, then of one that is nowhere, in one message."""
    caller, tried, ends_s = GrpcCaller(routed.grpc_port), 0, time.monotonic() + seconds
    twice = message(MODEL.model, [1.0, 2.0, 3.0, 4.0]) + b"\x0a\x07no-such"
    broken = 0
    while time.monotonic() < ends_s:
        broken += caller.send(twice) != "INVALID_ARGUMENT"
        tried += 1
        time.sleep(0.002)
    caller.close()
    return tried, broken


def _unpacked(routed: RoutedStand, seconds: float) -> tuple[int, int]:
    """60 KB of gzip that unpack to 60 MB, and messages of fields of two bytes."""
    import grpc

    caller = GrpcCaller(routed.grpc_port, compression=grpc.Compression.Gzip)
    named = message(VICTIM.model, [1.0, 2.0, 3.0, 4.0])
    bomb, fields = (
        named + b"\x7a" + _SIZE + bytes(60 << 20),
        named + b"\x78\0" * 500_000,
    )
    tried, ends_s = 0, time.monotonic() + seconds
    while time.monotonic() < ends_s:
        caller.send(bomb)
        caller.send(fields)
        tried += 2
    caller.close()
    return tried, 0


def _resets(routed: RoutedStand, seconds: float) -> tuple[int, int]:
    """Whole calls, each reset as soon as it is sent, over many connections."""
    data = message(VICTIM.model, [1.0, 2.0, 3.0, 4.0])
    sent = struct.pack(">BI", 0, len(data)) + data
    calls = b"".join(
        head(n) + frame(0, 1, n, sent) + frame(3, 0, n, bytes((0, 0, 0, 8)))
        for n in range(1, 4000, 2)
    )
    tried, ends_s = 0, time.monotonic() + seconds
    while time.monotonic() < ends_s:
        run_flood(routed.grpc_port, [HELLO + calls] * 8, 8, 0.05)
        tried += 8 * 2000
    return tried, 0


_ACTS: Final[dict[str, Callable[[RoutedStand, float], tuple[int, int]]]] = {
    "a node that lies": _lies,
    "bodies that are announced": _announced,
    "a model named twice": _named_twice,
    "messages that unpack": _unpacked,
    "calls that are reset": _resets,
}
