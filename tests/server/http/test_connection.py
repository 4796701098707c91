"""Connections: order, keep-alive, slow and vanishing clients, smuggling, limits."""

import gzip
import select
import socket
import time
from collections.abc import Iterator
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from interlace.core.errors import ServeError
from interlace.server.errors import HttpError
from interlace.server.http.bodies import ChunkedBody
from interlace.server.http.connection import LOOK_S
from interlace.server.limits import HeapBudget, HttpLimits, RefusalBucket
from tests.server.fakes import FakeRuntime, one_to_one, wait_until
from tests.server.stand import Stand
from tests.server.wire import Reader, binary_outputs, exchange, infer, request, v2_body

LIVE = request("GET", "/v2/health/live")


@pytest.fixture(scope="module")
def small() -> Iterator[Stand]:
    """A server with little patience and room."""
    limits = HttpLimits(
        connections=8,
        head_bytes=4096,
        body_bytes=1 << 20,
        json_bytes=1 << 16,
        admin_bytes=1 << 10,
        heap_bytes=1 << 17,
        head_s=0.3,
        body_idle_s=0.3,
        idle_s=0.6,
        send_idle_s=0.5,
        linger_s=0.3,
        sweep_s=0.05,
    )
    stand = Stand(limits)
    stand.publish(one_to_one("ident"))
    yield stand
    stand.close()


@pytest.fixture
def held(small: Stand) -> Iterator[None]:
    """The small server's runtime keeps its answers back until the test ends."""
    runtime = small.parts.runtime
    small.do(lambda: setattr(runtime, "hold", True))
    yield

    def restore() -> None:
        runtime.hold = False
        runtime.release()

    small.do(restore)


def test_a_connection_rests_after_a_refusal_where_there_are_too_many(http: Stand) -> None:
    state = http.parts.http._state
    before = state.refusals
    http.do(lambda: setattr(state, "refusals", RefusalBucket(per_s=0.5, most_s=1.5)))
    try:
        with http.connect() as refused, http.connect() as other:
            assert exchange(refused, infer("nobody", [[1.0]])).status == 404  # at once
            refused.sendall(LIVE)
            assert exchange(other, LIVE).status == 200
            assert not select.select([refused], [], [], 0.0)[0]
            assert Reader(refused).response().status == 200
    finally:
        http.do(lambda: setattr(state, "refusals", before))


def test_refusals_are_free_up_to_a_rate() -> None:
    bucket = RefusalBucket(per_s=5_000.0, most_s=0.05)
    rests_s = [bucket.rest_s() for _ in range(2_000)]
    assert rests_s[:500] == [0.0] * 500
    assert max(rests_s) == 0.05
    assert rests_s[-1] > 0.0


@pytest.mark.parametrize("piece", [7, 61, 1000])
def test_pipelined_requests_are_answered_in_order(http: Stand, piece: int) -> None:
    data = b"".join(
        b"\r\n" + infer("ident", [[float(i)]], id=str(i)) + (LIVE if i % 3 == 0 else b"")
        for i in range(40)
    )
    with http.connect() as connection:
        for i in range(0, len(data), piece):
            connection.sendall(data[i : i + piece])
        reader = Reader(connection)
        for i in range(40):
            output = binary_outputs(reader.response())["OUTPUT0"]
            assert output == np.float32(i).tobytes()
            if i % 3 == 0:
                assert reader.response().json == {"live": True}


def test_much_is_pipelined_while_an_answer_is_awaited(http: Stand, runtime: FakeRuntime) -> None:
    http.do(lambda: setattr(runtime, "hold", True))
    count = 3000  # more than the backlog takes: the server stops reading, and goes on later
    with http.connect() as connection:
        connection.settimeout(20)
        connection.sendall(infer("ident", [[1.0]]))
        connection.setblocking(False)
        left = LIVE * count
        ends = time.monotonic() + 0.5
        while left and time.monotonic() < ends:
            try:
                left = left[connection.send(left) :]
            except BlockingIOError:
                time.sleep(0.01)
        connection.settimeout(20)
        wait_until(lambda: bool(runtime.held))
        http.do(lambda: (setattr(runtime, "hold", False), runtime.release()))
        reader = Reader(connection)
        binary_outputs(reader.response())
        connection.sendall(left)
        for _ in range(count):
            assert reader.response().json == {"live": True}


def test_a_refused_body_is_skipped_and_the_connection_goes_on(http: Stand) -> None:
    with http.connect() as connection:
        reader = Reader(connection)
        connection.sendall(request("POST", "/v2/nowhere", b"x" * 5000) + LIVE)
        assert reader.response().status == 404
        assert reader.response().json == {"live": True}


def test_http_10(http: Stand) -> None:
    with http.connect() as connection:
        reader = Reader(connection)
        connection.sendall(
            request("GET", "/v2", version="1.0", headers={"Connection": "Keep-Alive"})
        )
        first = reader.response()
        assert (first.status, first.headers["connection"]) == (200, "keep-alive")
        connection.sendall(b"GET /v2/health/live HTTP/1.0\r\n\r\n")
        second = reader.response()
        assert (second.json, second.headers["connection"]) == ({"live": True}, "close")
        assert reader.at_end()


def test_connection_close(http: Stand) -> None:
    with http.connect() as connection:
        reader = Reader(connection)
        data = infer("ident", [[1.0]]).replace(b"\r\n", b"\r\nConnection: close\r\n", 1)
        connection.sendall(data)
        response = reader.response()
        assert binary_outputs(response)["OUTPUT0"] == np.float32(1).tobytes()
        assert response.headers["connection"] == "close"
        assert reader.at_end()


def test_head_has_the_headers_of_get(http: Stand) -> None:
    with http.connect() as connection:
        reader = Reader(connection)
        connection.sendall(request("GET", "/v2"))
        got = reader.response()
        connection.sendall(request("HEAD", "/v2") + LIVE)
        assert reader.response(bodyless=True).headers == got.headers
        assert reader.response().json == {"live": True}


def test_expect_continue(http: Stand) -> None:
    body, headers = v2_body(
        [("INPUT0", "FP32", [1, 1], bytes(4))], parameters={"binary_data_output": True}
    )
    data = request("POST", "/v2/models/ident/infer", body, headers | {"Expect": "100-continue"})
    with http.connect() as connection:
        reader = Reader(connection)
        connection.sendall(data[: -len(body)])
        assert reader.response().status == 100
        connection.sendall(body)
        assert reader.response().status == 200
        connection.sendall(data.replace(b"/v2/models", b"/v3/models")[: -len(body)])
        refused = reader.response()
        assert (refused.status, refused.headers["connection"]) == (404, "close")


@pytest.mark.parametrize(
    ("head", "status"),
    [
        (b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n", 400),
        (b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\nContent-Length: 5\r\n", 400),
        (b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\nContent-Length: 6\r\n", 400),
        (b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\nContent-Length: 5\r\n", 400),
        (b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: +5\r\n", 400),
        (b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 99999999999999999999\r\n", 400),
        (b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: gzip, chunked\r\n", 501),
        (b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding : chunked\r\n", 400),
        (b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: xchunked\r\n", 400),
        (b"POST / HTTP/1.0\r\nHost: a\r\nTransfer-Encoding: chunked\r\n", 400),
        (b"GET / HTTP/1.1\r\nHost: a\r\nHost: b\r\n", 400),
        (b"GET / HTTP/1.1\r\nX: y\r\n", 400),
        (b"GET / HTTP/1.1\r\nHost: a\r\nX: y\r\n folded\r\n", 400),
        (b"GET / HTTP/1.1\r\nHost: a\r\nX: y\nZ: w\r\n", 400),
        (b"GET / HTTP/1.1\r\nHost: a\r\nX: y\x00z\r\n", 400),
        (b"GET / HTTP/1.1\r\nHost: a\r\nX\r\n", 400),
        (b"GET / HTTP/2.0\r\nHost: a\r\n", 505),
        (b"GET / HTTP/0.9\r\nHost: a\r\n", 505),
        (b"GET / RTSP/1.0\r\nHost: a\r\n", 505),
        (b"GET /\r\nHost: a\r\n", 505),
        (b"PRI * HTTP/2.0\r\n", 505),
        (b"\x16\x03\x01\x02\x00\x01\x00\x01\r\n", 400),
        (b"nonsense\r\n", 400),
        (b"GET / HTTP/1.1\r\nHost: a\r\nInference-Header-Content-Length: x\r\n", 400),
        (b"GET / HTTP/1.1\r\nHost: a\r\nInference-Header-Content-Length: 5\r\n", 400),
        (b"GET / HTTP/1.1\r\nHost: a\r\nContent-Encoding: br\r\n", 415),
        (b"GET / HTTP/1.1\r\nHost: a\r\nExpect: miracles\r\n", 417),
    ],
)
def test_bad_heads_are_refused_and_the_connection_closed(
    http: Stand, head: bytes, status: int
) -> None:
    with http.connect() as connection:
        reader = Reader(connection)
        connection.sendall(head + b"\r\n" + LIVE)
        response = reader.response()
        assert (response.status, response.headers["connection"]) == (status, "close")
        assert response.headers["content-type"] == "application/json"
        assert response.error
        assert reader.at_end()


def test_bare_line_feeds_are_refused_at_once(http: Stand) -> None:
    with http.connect() as connection:
        response = exchange(connection, b"GET / HTTP/1.1\nHost: a\n\n")
        assert (response.status, "CR LF" in response.error) == (400, True)


@pytest.mark.parametrize(
    "chunks",
    [
     b"5\r\nhello!\r\n0\r\n\r\n", b"x\r\n", b"-1\r\n", b"5\nhello\r\n", b"1" * 5000, b"\r\n\r\n",
     b" 5\r\n", b"0x5\r\n", b"+5\r\n", b"5;\x00\r\n", b"1" * 17 + b"\r\n", b"1\r\na\n",
     b"0\r\n" + b"a: b\r\n" * 65, b"0\r\n" + b"a" * 5000,
    ],
)  # fmt: skip
def test_bad_chunks_are_refused(http: Stand, chunks: bytes) -> None:
    head = b"POST /v2/repository/index HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n"
    with http.connect() as connection:
        assert exchange(connection, head + chunks).status == 400


def test_upgrades_are_not_taken_up(http: Stand) -> None:
    headers = {"Connection": "Upgrade, HTTP2-Settings", "Upgrade": "h2c", "HTTP2-Settings": "AA"}
    with http.connect() as connection:
        assert exchange(connection, request("GET", "/v2", headers=headers)).status == 200


def test_wrong_methods_and_paths(http: Stand) -> None:
    with http.connect() as connection:
        reader = Reader(connection)
        connection.sendall(request("GET", "/v2/models/ident/infer"))
        wrong = reader.response()
        assert (wrong.status, wrong.error) == (405, "Method Not Allowed")
        assert wrong.headers["allow"] == "POST"
        for path in ("/v2/", "/v2/models/ident/", "/v3", "/v2/models//ready", "/" + "a/" * 50):
            connection.sendall(request("GET", path))
            assert reader.response().status == 404
        connection.sendall(request("GET", "http://localhost/v2/health/live?x=1"))
        assert reader.response().json == {"live": True}


# ---------------------------------------------------------------------------------- small limits


def test_slow_heads_time_out(small: Stand) -> None:
    with small.connect() as connection:
        connection.sendall(LIVE[:20])
        response = Reader(connection).response()
        assert (response.status, "whole head" in response.error) == (408, True)


def test_slow_bodies_time_out(small: Stand) -> None:
    before = small.used_bytes
    data = infer("ident", np.zeros((1, 1000), np.float32))
    with small.connect() as connection:
        connection.sendall(data[:500])
        assert Reader(connection).response().status == 408
    wait_until(lambda: small.used_bytes == before)


def test_dripping_bodies_time_out(small: Stand) -> None:
    data = infer("ident", np.zeros((1, 100_000), np.float32))
    with small.connect() as connection:
        connection.sendall(data[:300])
        ends = time.monotonic() + 10
        connection.setblocking(False)
        got = b""
        for i in range(300, len(data)):
            try:
                connection.send(data[i : i + 1])
                got = connection.recv(4096)
            except BlockingIOError:
                time.sleep(0.02)
            except ConnectionError:
                break
            if got or time.monotonic() > ends:
                break
        assert got.startswith(b"HTTP/1.1 408")


def test_idle_connections_are_closed_and_busy_ones_are_not(small: Stand) -> None:
    with small.connect() as idle, small.connect() as busy:
        for _ in range(12):
            assert exchange(busy, LIVE).status == 200
            time.sleep(0.1)
        assert Reader(idle).at_end()


def test_a_client_that_never_reads_is_cut_off(small: Stand) -> None:
    before = small.used_bytes
    data = infer("ident", np.zeros((1, 200_000), np.float32))
    with small.connect() as connection:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        connection.settimeout(5)
        with pytest.raises((ConnectionError, TimeoutError)):
            for _ in range(100):
                connection.sendall(data)
        wait_until(lambda: small.used_bytes == before)


def test_huge_heads_are_refused(small: Stand) -> None:
    with small.connect() as connection:
        data = b"GET / HTTP/1.1\r\nHost: a\r\n" + b"X: " + b"y" * 5000
        assert exchange(connection, data).status == 431
    with small.connect() as connection:
        assert exchange(connection, data + b"\r\n\r\n").status == 431


def test_large_bodies_are_refused_before_they_are_sent(small: Stand) -> None:
    cases = [
        ("/v2/models/ident/infer", {"Inference-Header-Content-Length": "100"}, 2 << 20),
        ("/v2/models/ident/infer", {"Inference-Header-Content-Length": "80000"}, 90000),
        ("/v2/models/ident/infer", {}, 1 << 17),
        ("/v2/repository/index", {}, 1 << 11),
    ]
    for path, headers, length in cases:
        data = request("POST", path, headers=headers | {"Content-Length": str(length)})
        with small.connect() as connection:
            if length > 1 << 16:
                response = exchange(connection, data)
                assert response.headers["connection"] == "close"
            else:
                response = exchange(connection, data + bytes(length))
            assert response.status == 413, response.body
            assert "limit" in response.error


def test_large_chunked_and_compressed_bodies_are_refused(small: Stand) -> None:
    head = request("POST", "/v2/models/ident/infer")
    chunked = head.replace(b"Content-Length: 0", b"Transfer-Encoding: chunked")
    with small.connect() as connection:
        assert exchange(connection, chunked + b"20000\r\n").status == 413
    bomb = gzip.compress(bytes(10 << 20))
    for more in ({}, {"Inference-Header-Content-Length": "10"}):
        headers = {"Content-Encoding": "gzip", **more}
        with small.connect() as connection:
            data = request("POST", "/v2/models/ident/infer", bomb, headers)
            response = exchange(connection, data)
            assert (response.status, "unpacks to more" in response.error) == (413, True)


def test_bodies_outside_of_the_arena_share_a_budget(small: Stand) -> None:
    head = request("POST", "/v2/models/ident/infer", headers={"Content-Length": "65000"})
    with small.connect() as one, small.connect() as two, small.connect() as three:
        one.sendall(head + bytes(64000))
        two.sendall(head + bytes(64000))
        service = small.parts.http._state
        wait_until(lambda: service.budget.used_bytes == 128_000)
        response = exchange(three, head + bytes(64000))
        assert (response.status, response.json["reason"]) == (429, "overloaded")
    wait_until(lambda: service.budget.used_bytes == 0)


def test_beyond_the_limit_of_busy_connections_only_probes_are_answered(
    small: Stand, held: None
) -> None:
    wait_until(lambda: small.parts.http.connections == 0)
    taken = [small.connect() for _ in range(8)]
    try:
        for connection in taken:
            connection.sendall(infer("ident", [[1.0]]))
        wait_until(lambda: len(small.parts.runtime.held) == 8)
        with small.connect() as probe, small.connect() as other:
            assert exchange(probe, LIVE).status == 200
            response = exchange(other, request("GET", "/v2/models"))
            assert (response.status, response.json["reason"]) == (503, "not_ready")
        beyond = [small.connect() for _ in range(small.parts.http._limits.probes)]
        with small.connect() as last:
            response = Reader(last).response()
            assert (response.status, response.json["reason"]) == (503, "not_ready")
        for connection in beyond:
            connection.close()
    finally:
        for connection in taken:
            connection.close()
    wait_until(lambda: small.parts.http.connections == 0)
    with small.connect() as connection:
        assert exchange(connection, LIVE).status == 200


def test_the_longest_idle_connection_makes_room(small: Stand) -> None:
    wait_until(lambda: small.parts.http.connections == 0)
    taken = []
    try:
        for _ in range(8):
            taken.append(small.connect())
            assert exchange(taken[-1], LIVE).status == 200
        time.sleep(0.05)  # the loop's clock counts milliseconds
        assert exchange(taken[0], LIVE).status == 200  # the second is now the longest idle
        time.sleep(2 * LOOK_S)
        taken.append(small.connect())
        assert exchange(taken[-1], request("GET", "/v2/models")).status == 200
        assert Reader(taken[1]).at_end()
        assert exchange(taken[0], LIVE).status == 200
    finally:
        for connection in taken:
            connection.close()


def test_an_empty_arena_refuses_and_recovers(small: Stand) -> None:
    arena = small.parts.memory.arena
    taken = small.do(lambda: [arena.alloc(1 << 24) for _ in range(4)])
    try:
        with small.connect() as connection:
            reader = Reader(connection)
            connection.sendall(infer("ident", [[1.0]]))
            response = reader.response()
            assert (response.status, "no room" in response.error) == (429, True)
            small.do(lambda: arena.free(taken.pop()))
            connection.sendall(infer("ident", [[1.0]]))
            assert reader.response().status == 200
    finally:
        small.do(lambda: [arena.free(offset) for offset in taken])


def encoded(chunks: list[bytes], extension: bytes, trailer: bytes) -> bytes:
    parts = [b"%X%b\r\n%b\r\n" % (len(c), extension, c) for c in chunks if c]
    return b"".join([*parts, b"0\r\n", trailer, b"\r\n"])


def feed(body: ChunkedBody, data: bytes, cuts: list[int]) -> bytes:
    """What is left over after the body."""
    edges = sorted({0, len(data), *(cut % (len(data) + 1) for cut in cuts)})
    for start, stop in pairwise(edges):
        piece = bytearray(data[start:stop])
        used = body.take(piece, 0, len(piece))
        if body.done:
            return bytes(piece[used:]) + data[stop:]
        assert used == len(piece)
    return b""


@given(
    st.lists(st.binary(max_size=40), max_size=6),
    st.sampled_from([b"", b";name=value", b' ; q="x"']),
    st.sampled_from([b"", b"Checksum: 1\r\n"]),
    st.binary(max_size=10),
    st.lists(st.integers(0, 1000), max_size=8),
)
def test_any_cut_gives_the_same_body(
    chunks: list[bytes], extension: bytes, trailer: bytes, after: bytes, cuts: list[int]
) -> None:
    body = ChunkedBody(10_000, HeapBudget(1 << 20))
    left = feed(body, encoded(chunks, extension, trailer) + after, cuts)
    assert body.done
    assert bytes(body.data) == b"".join(chunks)
    assert left == after


@given(st.binary(max_size=60), st.lists(st.integers(0, 60), max_size=4))
def test_any_bytes_are_taken_or_refused(data: bytes, cuts: list[int]) -> None:
    body = ChunkedBody(100, HeapBudget(1 << 20))
    try:
        feed(body, data, cuts)
    except (HttpError, ServeError):
        return
    assert len(body.data) <= 100


def test_the_limit_holds_before_the_bytes_come() -> None:
    with pytest.raises(ServeError, match="limit of 100 bytes"):
        feed(ChunkedBody(100, HeapBudget(1 << 20)), b"65\r\n", [])
