"""Every request through a router ends, whatever its node says or does not say."""

import random
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress

import grpc
import pytest

from interlace.proto.messages import ModelInferResponse, ModelStreamInferResponse
from interlace.router.grpc import node_channel
from interlace.router.grpc.node_call import NodeCall
from interlace.router.grpc.passed_calls import CallEnd
from interlace.server.grpc import http2_frames as h2
from interlace.server.grpc.frame_writer import OnSent
from interlace.server.limits import GrpcLimits, HeapReservation
from interlace.shm.blocks import ArenaBlocks
from tests.router.scripted_node import (
    ScriptedGrpcNode,
    answers,
    begun,
    ended,
    nothing,
    says,
    sent,
    silent,
)
from tests.router.stand import Made, RouterStand
from tests.server.fakes import wait_until
from tests.server.grpc.fakes import client, streaming
from tests.server.grpc.wirebench import HELLO, INFER, STREAM, data, head, message, request
from tests.server.wire import Reader
from tests.server.wire import request as http_request

_SLO_MS = 80.0
_MESSAGE = b"\0\0\0\0\x02\x0a\0"


class CallsNobody:
    """Wants no answer."""

    def completed(self) -> None:
        raise AssertionError

    def responded(self, message: memoryview, sent: OnSent) -> None:
        raise AssertionError

    def replied(self, message: memoryview, reserved: HeapReservation) -> None:
        raise AssertionError

    def refused(self, end: CallEnd) -> None:
        raise AssertionError

    def lost(self, why: str) -> None:
        raise AssertionError

    def waits(self) -> bool:
        return False


@contextmanager
def routed(*nodes: ScriptedGrpcNode) -> Iterator[tuple[RouterStand, grpc.Channel]]:
    """A router over these nodes, with model "m", and a client of it."""
    ports = dict(zip("ab", [node.port for node in nodes], strict=False))
    router = RouterStand(dict.fromkeys(ports, 1), ports)
    for wait_ms, name in enumerate(ports):
        router.heard(name, "m", wait_ms=5.0 + wait_ms, slo_ms=_SLO_MS)
    try:
        with client(router.grpc_port) as channel:
            yield router, channel
        parts = router.parts
        wait_until(lambda: parts.calls.count == 0 and parts.calls.heap.used_bytes == 0)
    finally:
        router.close()
        for node in nodes:
            node.close()


def call(channel: grpc.Channel) -> grpc.Future:
    """A call that waits for long."""
    made = channel.unary_unary(INFER, _registered_method=False)
    return made.future(request(b"x", model="m"), timeout=20)


def failure(channel: grpc.Channel) -> grpc.RpcError:
    with pytest.raises(grpc.RpcError) as caught:
        call(channel).result()
    return caught.value


@pytest.mark.parametrize(
    "node", [silent, says(b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n", b"h", *[b""] * 40)]
)
def test_a_silent_node_ends_no_request_of_http_late(made: Made, node: Callable[..., bool]) -> None:
    router, _ = made([node], slo_ms=_SLO_MS)
    with router.connect() as connection:
        began_s = time.monotonic()
        connection.sendall(http_request("POST", "/v2/models/m/infer", b"x" * 100_000))
        reply = Reader(connection).response()
        took_s = time.monotonic() - began_s
    assert reply.status == 504 and "node 'a' did not answer model 'm' within 1090 ms" in reply.error
    assert 1.0 < took_s < 3.0
    links = router.parts.directory.links("a")
    assert (links.in_flight, links.lost) == (0, 1)
    wait_until(lambda: router.used_bytes == 0)


def test_a_silent_node_ends_no_call_late() -> None:
    node = ScriptedGrpcNode(nothing)
    with routed(node) as (router, channel):
        began_s = time.monotonic()
        error = failure(channel)
        assert error.code() is grpc.StatusCode.DEADLINE_EXCEEDED
        assert "node 'a' did not answer model 'm' within 1080 ms" in error.details()
        assert 1.0 < time.monotonic() - began_s < 3.0
        assert router.parts.directory.links("a").in_flight == 0


@pytest.mark.parametrize(
    ("trailers", "code", "told"),
    [
        ({"grpc_status": "99"}, grpc.StatusCode.UNKNOWN, None),
        ({"grpc_status": "-1"}, grpc.StatusCode.UNKNOWN, None),
        ({"grpc_status": "+3"}, grpc.StatusCode.UNKNOWN, None),
        ({"grpc_status": "1_3"}, grpc.StatusCode.UNKNOWN, None),
        ({}, grpc.StatusCode.UNKNOWN, None),
        *[
            ({"grpc_status": "3", "retry_after_ms": text}, grpc.StatusCode.INVALID_ARGUMENT, told)
            for text, told in (
                ("inf", None), ("nan", None), ("-5", None), ("1e300", None), ("9" * 400, None),
                ("soon", None), ("", None), ("12.5", "12"),
            )
        ],
    ],
)  # fmt: skip
def test_an_odd_end_of_one_call_is_passed_on_and_leaves_the_others(
    trailers: dict[str, str], code: grpc.StatusCode, told: str | None
) -> None:
    node = ScriptedGrpcNode(nothing, ended(**trailers), ended(grpc_status="3"))
    with routed(node) as (_, channel):
        other = call(channel)
        wait_until(lambda: len(node.calls) == 1)
        error = failure(channel)
        assert error.code() is code
        assert dict(error.trailing_metadata()).get("retry-after-ms") == told
        assert failure(channel).code() is grpc.StatusCode.INVALID_ARGUMENT
        assert not other.done() and node.calls == [1, 3, 5]  # all over one connection
        other.cancel()


@pytest.mark.parametrize(
    "data", [b"", b"\0\0\0\0", b"\1" + _MESSAGE[1:], _MESSAGE + b"x", _MESSAGE[:-1], _MESSAGE * 2]
)
def test_what_is_not_one_plain_message_is_no_answer(data: bytes) -> None:
    node = ScriptedGrpcNode(sent(data))
    with routed(node) as (_, channel):
        error = failure(channel)
        assert error.code() is grpc.StatusCode.INTERNAL
        assert error.details() == "the node's response is not one plain message"


def test_a_call_of_a_connection_that_is_ending_is_cancelled_alone() -> None:
    def goes_away(number: int) -> bytes:
        return h2.frame(h2.GOAWAY, 0, 0, number.to_bytes(4, "big") + bytes(4))

    node = ScriptedGrpcNode(goes_away, sent(_MESSAGE), nothing)
    with routed(node) as (router, channel):
        first = call(channel)
        wait_until(lambda: len(node.calls) == 1)
        assert call(channel).result() == _MESSAGE[5:]  # over a second connection
        later = call(channel)
        wait_until(lambda: len(node.calls) == 3)
        links = router.parts.directory.links("a").grpc
        first.cancel()
        wait_until(lambda: router.parts.calls.count == 1)
        assert links.in_flight == 1
        with pytest.raises(grpc.RpcError) as caught:
            later.result()
        assert caught.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED


def test_bodies_that_are_only_announced_take_no_memory(made: Made) -> None:
    router, (node,) = made([answers(200, b"yes")])
    arena = router.parts.memory.arena
    size = arena.size_bytes // 4
    head = http_request("POST", "/v2/models/m/infer", b"x" * size)[: -size + 1000]
    with ExitStack() as ends:
        for _ in range(8):
            ends.enter_context(router.connect()).sendall(head)
        wait_until(lambda: arena.used_bytes >= 8 * 64 << 10)
        assert arena.used_bytes <= 8 * 128 << 10
        other = ends.enter_context(router.connect())
        body = random.Random(1).randbytes(size)
        other.sendall(http_request("POST", "/v2/models/m/infer", body))
        assert Reader(other).response().status == 200
        assert node.bodies == [body]
    wait_until(lambda: arena.used_bytes == 0)


def test_a_body_for_which_there_is_no_room_is_refused(made: Made) -> None:
    router, _ = made([silent])
    arena = router.parts.memory.arena
    blocks = ArenaBlocks(arena)
    router.do(lambda: blocks.alloc(arena.size_bytes // 2 - 64))
    half = arena.size_bytes // 2
    for size, status in ((half, 429), (half + 1, 413)):
        binary = {"Inference-Header-Content-Length": "4"}
        with router.connect() as connection:
            with suppress(OSError):
                connection.sendall(http_request("POST", "/v2/models/m/infer", b"x" * size, binary))
            assert Reader(connection).response().status == status
    router.do(blocks.free)
    wait_until(lambda: arena.used_bytes == 0)


def test_a_reply_that_is_only_announced_takes_no_memory(made: Made) -> None:
    def announces(connection: socket.socket, head: bytes) -> bool:
        connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 400000000\r\n\r\n12345")
        return silent(connection, head)

    router, _ = made([announces], [answers(200, b"y" * 3_000_000)])
    router.heard("b", "large")
    budget = router.parts.forwarder.budget
    with ExitStack() as ends:
        for _ in range(3):
            ends.enter_context(router.connect()).sendall(
                http_request("POST", "/v2/models/m/infer", b"{}")
            )
        wait_until(lambda: 15 <= budget.used_bytes < 100)
        other = ends.enter_context(router.connect())
        other.sendall(http_request("POST", "/v2/models/large/infer", b"{}"))
        assert Reader(other).response().body == b"y" * 3_000_000
    wait_until(lambda: budget.used_bytes == 0)


def test_clients_that_reset_calls_do_not_cut_the_connection_they_share(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(node_channel, "_RESETS_PER_S", 0.0)
    resets: list[int] = []
    node = ScriptedGrpcNode(sent(_MESSAGE), nothing, resets=resets)
    with routed(node) as (router, channel):
        assert call(channel).result() == _MESSAGE[5:]
        links = router.parts.directory.links("a").grpc
        limit = int(GrpcLimits().resets_per_s)

        def made() -> list[NodeCall]:
            return [
                links.call(INFER, memoryview(b"x"), None, 0.0, CallsNobody()) for _ in range(500)
            ]

        for _ in range(limit // 500 + 1):
            calls = router.do(made)  # sent by the end of this turn
            router.do(lambda made=calls: [one.cancel() for one in made])
        wait_until(lambda: len(node.calls) == limit + 501)
        wait_until(lambda: links.in_flight == 500 and len(resets) == limit)


def _response(id: str, nbytes: int = 0) -> bytes:
    """One response of a stream, as a gRPC message."""
    response = ModelInferResponse(id=id, raw_output_contents=[bytes(nbytes)])
    return message(ModelStreamInferResponse(infer_response=response).SerializeToString())


def _stream(channel: grpc.Channel) -> grpc.Call:
    return streaming(channel)(iter([request(b"x", model="m", call_id="7")]), timeout=20)


def test_a_stream_has_the_responses_of_its_node_however_they_are_cut() -> None:
    whole = b"".join(_response(str(i), 100 * i) for i in range(9))
    parts = [whole[at : at + 777] for at in range(0, len(whole), 777)]
    with routed(ScriptedGrpcNode(sent(*parts), sent())) as (_, channel):
        found = [one.infer_response for one in _stream(channel)]
        assert [one.id for one in found] == [str(i) for i in range(9)]
        assert [len(one.raw_output_contents[0]) for one in found] == [100 * i for i in range(9)]
        assert not list(_stream(channel)), "an empty final response that was not asked for"


@pytest.mark.parametrize(
    ("end", "said"),
    [
        (lambda number: h2.rst_stream(number, h2.CANCEL), "the node did not go on: it reset"),
        (ended(grpc_status="14", grpc_message="it stopped"), "it stopped"),
        (lambda number: h2.frame(h2.DATA, 0, number, _response("b")[:-1]) +
         ended(grpc_status="0")(number), "not one plain message"),
    ],
)  # fmt: skip
def test_a_stream_that_breaks_off_is_not_run_twice(end: Callable[[int], bytes], said: str) -> None:
    first = begun(_response("a"))
    node = ScriptedGrpcNode(lambda number: first(number) + end(number))
    other = ScriptedGrpcNode(sent(_response("other")))
    with routed(node, other) as (_, channel):
        one, last = list(_stream(channel))
        assert one.infer_response.id == "a"
        assert said in last.error_message and last.infer_response.id == "7"
    assert not other.calls


def test_a_stream_without_a_response_is_tried_at_another_node() -> None:
    node = ScriptedGrpcNode(ended(grpc_status="14", grpc_message="busy"))
    other = ScriptedGrpcNode(sent(_response("other")))
    with routed(node, other) as (_, channel):
        assert [one.infer_response.id for one in _stream(channel)] == ["other"]


def test_a_stream_that_its_client_cancels_is_cancelled_at_its_node() -> None:
    resets: list[int] = []
    node = ScriptedGrpcNode(begun(_response("a")), resets=resets)
    with routed(node) as (_, channel):
        call = _stream(channel)
        assert next(call).infer_response.id == "a"
        time.sleep(3 * _SLO_MS / 1000)  # it may be silent for longer than its SLO by now
        assert not resets
        call.cancel()
        wait_until(lambda: resets == node.calls)


def test_a_node_sends_on_as_the_client_of_a_stream_reads() -> None:
    piece = _response("a", 1 << 20)
    cut = [piece[at : at + 16_000] for at in range(0, len(piece), 16_000)]
    node = ScriptedGrpcNode(begun(*cut * 15))
    with (
        routed(node) as (router, _),
        socket.create_connection(("127.0.0.1", router.grpc_port)) as client,
    ):
        heap = router.parts.forwarder.budget
        asked = message(request(b"x", model="m"))
        client.sendall(HELLO + head(1, path=STREAM) + data(1, asked))
        wait_until(lambda: heap.used_bytes > 14 << 20)
        assert not node.credit[1], "its client reads nothing"
        client.sendall(h2.window_update(0, 1 << 26) + h2.window_update(1, 1 << 26))
        client.settimeout(20)
        left = 15 * len(piece)
        while left > 0:
            left -= len(client.recv(1 << 20))
        wait_until(lambda: node.credit[1] > 8 << 20)
        client.sendall(h2.rst_stream(1, h2.CANCEL))
