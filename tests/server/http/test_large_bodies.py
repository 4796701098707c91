"""Large bodies: decoded beside the loop, bounded by what the model can need, given back after."""

import gzip
import json
import os
import signal
import socket
import threading
import time
import zlib
from collections.abc import Iterator
from contextlib import ExitStack

import numpy as np
import pytest

from interlace.server.http.request_head import Origins
from interlace.server.limits import HttpLimits
from interlace.shm.arena import RESERVE_BYTES
from tests.server.fakes import one_to_one, wait_until
from tests.server.stand import Stand
from tests.server.wire import Response, binary_outputs, exchange, request, v2_body

PATH = "/v2/models/{}/infer"


@pytest.fixture(scope="module")
def stand() -> Iterator[Stand]:
    """A server with models of free and of fixed size."""
    stand = Stand(HttpLimits(heap_bytes=64 << 20), origins=Origins())
    stand.publish(
        one_to_one("free"),
        one_to_one("text", "BYTES"),
        one_to_one("fixed", dims=(16,)),
        one_to_one("wide", dims=(100_000,)),
    )
    yield stand
    stand.close()


@pytest.fixture(autouse=True)
def _everything_is_given_back(stand: Stand) -> Iterator[None]:
    yield
    wait_until(lambda: stand.used_bytes == 0)
    wait_until(lambda: stand.parts.inference.context.budget.used_bytes == 0)


def ask(stand: Stand, model: str, body: bytes, headers: dict[str, str] | None = None) -> Response:
    with stand.connect() as connection:
        connection.settimeout(60)
        return exchange(connection, request("POST", PATH.format(model), body, headers))


def as_json(values: object, shape: list[int], datatype: str = "FP32") -> bytes:
    tensor = {"name": "INPUT0", "datatype": datatype, "shape": shape, "data": values}
    return json.dumps(
        {"inputs": [tensor], "parameters": {"binary_data_output": True}, "id": "7"}
    ).encode()


def binary(array: np.ndarray) -> tuple[bytes, dict[str, str]]:  # type: ignore[type-arg]
    more = {"binary_data_output": True}
    return v2_body([("INPUT0", "FP32", array.shape, array.tobytes())], parameters=more)


def test_large_json_is_what_small_json_is(stand: Stand) -> None:
    array = np.random.default_rng(1).random((2, 50_000), np.float32)
    response = ask(stand, "free", as_json(array.tolist(), [2, 50_000]))
    assert response.status == 200, response.body[:300]
    assert binary_outputs(response)["OUTPUT0"] == array.tobytes()
    assert json.loads(response.body.split(b"}]}")[0] + b"}]}")["id"] == "7"


def test_large_replies_in_json(stand: Stand) -> None:
    array = np.random.default_rng(5).random((2, 40_000), np.float32)
    array[0, 7] = np.nan
    body, headers = v2_body([("INPUT0", "FP32", array.shape, array.tobytes())])
    response = ask(stand, "free", body, headers)
    assert response.status == 200
    (output,) = response.json["outputs"]
    assert np.array_equal(np.array(output["data"], np.float32), array.ravel(), equal_nan=True)
    assert ask(stand, "free", body, {**headers, "Accept-Encoding": "gzip"}).status == 200


@pytest.mark.parametrize("coding", ["", "gzip"])
def test_large_bodies_of_generate(stand: Stand, coding: str) -> None:
    for model, value in (("text", "word" * 50_000), ("free", [0.5] * 50_000)):
        body = json.dumps({"INPUT0": value, "id": "7", "seed": 3}).encode()
        headers = {"Content-Encoding": coding} if coding else {}
        data = gzip.compress(body) if coding else body
        with stand.connect() as connection:
            path = f"/v2/models/{model}/generate"
            response = exchange(connection, request("POST", path, data, headers))
        assert (response.status, response.json["id"]) == (200, "7")
        assert response.json["OUTPUT0"] == value


def test_large_texts_in_json(stand: Stand) -> None:
    texts = [f"text {i}, with a comma" for i in range(5000)]
    response = ask(stand, "text", as_json(texts, [1, 5000], "BYTES"))
    assert response.status == 200
    framed = b"".join(len(t).to_bytes(4, "little") + t.encode() for t in texts)
    assert binary_outputs(response)["OUTPUT0"] == framed


def test_bodies_that_are_only_announced_leave_room_for_others(stand: Stand) -> None:
    arena = stand.parts.memory.arena
    array = np.random.default_rng(3).random((1, arena.size_bytes // 64), np.float32)
    announced, headers = v2_body([("INPUT0", "FP32", array.shape, array.tobytes())])
    head = request("POST", PATH.format("free"), announced, headers)[: -array.nbytes + 1000]
    with ExitStack() as ends:
        for _ in range(64):
            ends.enter_context(stand.connect()).sendall(head)
        wait_until(lambda: stand.parts.http.connections == 64)
        wait_until(lambda: stand.used_bytes > arena.size_bytes // 4)
        body, headers = binary(array)
        for _ in range(3):
            assert binary_outputs(ask(stand, "free", body, headers))["OUTPUT0"] == array.tobytes()
        assert stand.used_bytes < arena.size_bytes * 3 // 4


@pytest.mark.parametrize("coding", ["gzip", "deflate"])
@pytest.mark.parametrize("chunked", [False, True])
def test_large_packed_bodies(stand: Stand, coding: str, chunked: bool) -> None:
    pack = gzip.compress if coding == "gzip" else zlib.compress
    random = np.random.default_rng(2).random((1, 100_000), np.float32)
    for array in (random, np.zeros((1, 1_000_000), np.float32)):
        plain, headers = binary(array)
        packed = pack(plain)
        headers |= {"Content-Encoding": coding}
        if chunked:
            headers |= {"Transfer-Encoding": "chunked"}
            packed = f"{len(packed):x}\r\n".encode() + packed + b"\r\n0\r\n\r\n"
        data = request("POST", PATH.format("free"), packed, headers)
        if chunked:
            start, _, rest = data.partition(b"\r\nContent-Length: ")
            data = start + b"\r\n" + rest.partition(b"\r\n")[2]
        with stand.connect() as connection:
            response = exchange(connection, data)
        assert response.status == 200, response.body[:300]
        assert binary_outputs(response)["OUTPUT0"] == array.tobytes()


def test_packed_large_json(stand: Stand) -> None:
    array = np.arange(60_000, dtype=np.float32).reshape(1, -1)
    body = gzip.compress(as_json(array.tolist(), [1, 60_000]))
    response = ask(stand, "free", body, {"Content-Encoding": "gzip"})
    assert binary_outputs(response)["OUTPUT0"] == array.tobytes()


@pytest.mark.parametrize(
    ("body", "text"),
    [
        (b'{"inputs":[' + b"1," * 50_000 + b"1]}", "Expected `object`, got `int`"),
        (as_json([1.0] * 50_000, [1, 7]), "needs 7 values in 'data', got 50000"),
        (as_json([1.0] * 50_000, [2, 50_000]), "needs 100000 values in 'data', got 50000"),
        (b"{" * 100_000, "failed to parse the request JSON"),
        (as_json(["x"] * 50_000, [1, 50_000]), "Expected `float`, got `str`"),
    ],
)
def test_wrong_large_json_is_named_in_a_400(stand: Stand, body: bytes, text: str) -> None:
    response = ask(stand, "free", body)
    assert response.status == 400, response.body[:300]
    assert text in response.error


def test_wrong_packed_bodies_are_named(stand: Stand) -> None:
    plain, headers = binary(np.random.default_rng(3).random((1, 100_000), np.float32))
    packed = gzip.compress(plain)
    headers |= {"Content-Encoding": "gzip"}
    for body, text in (
        (packed[:-20_000], "cut off"),
        (packed + b"more", "4 bytes follow"),
        (bytes(100_000), "not gzip"),
    ):
        response = ask(stand, "free", body, headers)
        assert (response.status, text in response.error) == (400, True), response.error


def test_what_no_request_of_the_model_needs_is_refused(stand: Stand) -> None:
    """A model of 16 numbers a row and 8 rows takes 512 bytes: nothing else is unpacked or read."""
    bomb = gzip.compress(bytes(50 << 20))
    response = ask(stand, "fixed", bomb, {"Content-Encoding": "gzip"})
    assert (response.status, "unpacks to more than" in response.error) == (413, True)
    response = ask(stand, "fixed", as_json([1.0] * 400_000, [1, 16]))
    text = "the most that a request of this model"
    assert (response.status, text in response.error) == (413, True)
    head = request("POST", PATH.format("fixed"), headers={"Content-Length": str(100 << 20),
                   "Inference-Header-Content-Length": "50"})  # fmt: skip
    with stand.connect() as connection:
        assert exchange(connection, head).status == 413
    head = request("POST", PATH.format("nobody"), headers={"Content-Length": str(10 << 20)})
    with stand.connect() as connection:
        assert exchange(connection, head).status == 404


def test_unpacked_bytes_count_before_they_are_unpacked(stand: Stand) -> None:
    bomb = gzip.compress(bytes(60 << 20))
    responses: list[Response] = []

    def send() -> None:
        responses.append(ask(stand, "free", bomb, {"Content-Encoding": "gzip"}))

    threads = [threading.Thread(target=send) for _ in range(12)]
    for thread in threads:
        thread.start()
    most = 0
    while any(thread.is_alive() for thread in threads):
        most = max(most, stand.parts.inference.context.budget.used_bytes)
        time.sleep(0.002)
    for thread in threads:
        thread.join()
    assert most <= 64 << 20
    assert {response.status for response in responses} <= {413, 429}


def test_others_are_answered_while_large_bodies_wait_for_their_process(stand: Stand) -> None:
    numbers = b'{"inputs":[{"name":"INPUT0","datatype":"FP32","shape":[1,2000000],"data":['
    bodies: list[tuple[bytes, dict[str, str]]] = [
        (numbers + b"1," * 1_999_999 + b"1]}]}", {}),
        (gzip.compress(bytes(8 << 20)), {"Content-Encoding": "gzip"}),
    ]
    assert ask(stand, "free", as_json([1.0] * 60_000, [1, 60_000])).status == 200
    process = stand.parts.inference.context.bodies
    child = process._child
    assert child is not None
    os.kill(child.pid, signal.SIGSTOP)
    answers: list[Response] = []
    threads = [
        threading.Thread(target=lambda each=each: answers.append(ask(stand, "free", *each)))
        for each in bodies
    ]
    try:
        for thread in threads:
            thread.start()
        wait_until(lambda: process._waiting == 2)
        for _ in range(5):
            assert ask(stand, "free", *binary(np.ones((1, 4), np.float32))).status == 200
        assert not answers
    finally:
        os.kill(child.pid, signal.SIGCONT)
    for thread in threads:
        thread.join(60)
    assert sorted(answer.status for answer in answers) == [200, 400]


def test_a_body_process_that_dies_costs_one_request(stand: Stand) -> None:
    body = as_json([1.0] * 60_000, [1, 60_000])
    assert ask(stand, "free", body).status == 200
    process = stand.parts.inference.context.bodies
    child = process._child
    assert child is not None
    os.kill(child.pid, signal.SIGSTOP)
    answers: list[Response] = []
    thread = threading.Thread(target=lambda: answers.append(ask(stand, "free", body)))
    thread.start()
    wait_until(lambda: process._waiting == 1)
    os.kill(child.pid, signal.SIGKILL)
    thread.join(30)
    assert (answers[0].status, "died" in answers[0].error) == (500, True)
    assert ask(stand, "free", body).status == 200


def test_a_client_that_leaves_frees_what_was_decoded_for_it(stand: Stand) -> None:
    data = request("POST", PATH.format("free"), as_json([1.0] * 200_000, [1, 200_000]))
    for _ in range(3):
        connection = stand.connect()
        connection.sendall(data)
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
        connection.close()


def test_memory_of_bodies_goes_back_once_it_was_not_needed_for_long(stand: Stand) -> None:
    """Only where nobody locks the pages: with GPUs it stays."""
    arena, server = stand.parts.memory.arena, stand.parts.http
    plain, headers = binary(np.zeros((1, 8_000_000), np.float32))
    assert ask(stand, "free", plain, headers).status == 200

    def resident_bytes() -> int:
        return os.stat(f"/proc/self/fd/{arena._fd}").st_blocks * 512

    wait_until(lambda: stand.used_bytes == 0)
    arena.touch()
    held = resident_bytes()
    assert held == arena.size_bytes
    for trims, turns, least, most in ((False, 900, held, held), (True, 20, held, held),
                                      (True, 900, 0, RESERVE_BYTES)):  # fmt: skip
        server._trims = trims
        for _ in range(turns):
            stand.do(server._trim)
        assert least <= resident_bytes() <= most
