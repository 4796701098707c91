"""Everything but inference over HTTP."""

import asyncio
import base64
import gzip
import itertools
import json
import os
import socket
import struct
import zlib
from collections.abc import Iterator
from multiprocessing import shared_memory
from typing import Any

import pytest

from interlace.core.errors import Reason, ServeError
from interlace.server.api_keys import ApiKeys
from interlace.server.http.admin_handler import metrics_route
from interlace.server.http.server import HttpServer
from tests.server.fakes import FakeControl, one_to_one, wait_until
from tests.server.stand import Stand
from tests.server.wire import Reader, Response, binary_outputs, exchange, infer, request, v2_body


def get(http: Stand, path: str, **headers: str) -> Response:
    with http.connect() as connection:
        return exchange(connection, request("GET", path, headers=headers))


def post(http: Stand, path: str, body: object = None, **headers: str) -> Response:
    data = b"" if body is None else json.dumps(body).encode()
    with http.connect() as connection:
        return exchange(connection, request("POST", path, data, headers))


@pytest.fixture
def control(http: Stand) -> Iterator[FakeControl]:
    control = http.parts.control
    yield control
    control.calls.clear()
    control.entries.clear()
    control.error = None
    control.is_ready = True


def test_server_metadata_names_what_is_there(http: Stand) -> None:
    metadata = get(http, "/v2").json
    assert metadata["name"] == "interlace"
    assert metadata["version"]
    assert {"statistics", "binary_tensor_data", "model_repository"} <= set(metadata["extensions"])
    assert "sequence" in metadata["extensions"]
    assert "cuda_shared_memory" not in metadata["extensions"]
    assert get(http, "/").json["live"] is True


def test_quoted_names_reach_their_model(http: Stand) -> None:
    http.publish(one_to_one("a b/c"))
    try:
        assert get(http, "/v2/models/a%20b%2Fc").json["name"] == "a b/c"
    finally:
        http.do(lambda: http.parts.table.withdraw("a b/c/1#0"))


def test_load_and_unload(http: Stand, control: FakeControl) -> None:
    loaded = post(http, "/v2/repository/models/a/load", {})
    assert (loaded.status, loaded.body) == (200, b"")
    data = base64.b64encode(b"weights").decode()
    parameters = {"config": "{}", "file:1/model.onnx": data}
    post(http, "/v2/repository/r/models/a/load", {"parameters": parameters})
    unload = {"parameters": {"unload_dependents": True}}
    assert post(http, "/v2/repository/models/a/unload", unload).status == 200
    assert control.calls == [
        ("load", "a", None, None),
        ("load", "a", "{}", {"1/model.onnx": b"weights"}),
        ("unload", "a"),
    ]
    bad = post(http, "/v2/repository/models/a/load", {"parameters": {"file:x": "%%"}})
    assert (bad.status, "not base64" in bad.error) == (400, True)
    unknown = post(http, "/v2/repository/models/a/load", {"parameters": {"what": "x"}})
    assert "not 'what'" in unknown.error
    control.error = ServeError(Reason.BACKEND, "failed to load 'a', no such file")
    failed = post(http, "/v2/repository/models/a/load")
    assert (failed.status, failed.error) == (500, "failed to load 'a', no such file")


def test_a_client_that_leaves_does_not_stop_a_load(http: Stand, control: FakeControl) -> None:
    connection = http.connect()
    connection.sendall(request("POST", "/v2/repository/models/a/load"))
    connection.close()
    wait_until(lambda: bool(control.calls))


def test_compressed_administration(http: Stand) -> None:
    data = gzip.compress(b'{"ready": true}')
    with http.connect() as connection:
        headers = {"Content-Encoding": "gzip"}
        packed = request("POST", "/v2/repository/index", data, headers)
        assert exchange(connection, packed).json == []
        bomb = request("POST", "/v2/repository/index", gzip.compress(bytes(2 << 20)), headers)
        assert exchange(connection, bomb).status == 413
        listing = request("GET", "/v2/models/stats", headers={"Accept-Encoding": "deflate"})
        stats = exchange(connection, listing)
        assert stats.headers["content-encoding"] == "deflate"
        assert json.loads(zlib.decompress(stats.body))["model_stats"]


def test_metrics_have_a_port_of_their_own(http: Stand) -> None:
    pages = itertools.count()
    server = http.do(lambda: HttpServer([metrics_route(lambda: f"x {next(pages)}\n")]))
    port = http.wait(server.listen("127.0.0.1", 0))
    with socket.create_connection(("127.0.0.1", port), timeout=10) as connection:
        for i in range(3):
            assert exchange(connection, request("GET", "/metrics")).body == b"x %d\n" % i
        assert exchange(connection, request("GET", "/v2")).status == 404
    http.wait(server.close())


# ------------------------------------------------------------------------------- shared memory


@pytest.fixture
def block() -> Iterator[shared_memory.SharedMemory]:
    block = shared_memory.SharedMemory(create=True, size=4096)
    yield block
    block.close()
    block.unlink()


def shared_request(out_bytes: int = 16) -> dict[str, Any]:
    def region(offset: int, size: int) -> dict[str, Any]:
        return {
            "shared_memory_region": "io",
            "shared_memory_offset": offset,
            "shared_memory_byte_size": size,
        }

    return {
        "inputs": [
            {"name": "INPUT0", "datatype": "FP32", "shape": [1, 4], "parameters": region(0, 16)}
        ],
        "outputs": [{"name": "OUTPUT0", "parameters": region(64, out_bytes)}],
    }


def test_tensors_through_shared_memory(http: Stand, block: shared_memory.SharedMemory) -> None:
    before = http.used_bytes
    region = {"key": "/" + block.name, "offset": 1024, "byte_size": 128}
    assert post(http, "/v2/systemsharedmemory/region/io/register", region).status == 200
    assert get(http, "/v2/systemsharedmemory/region/io/status").json == [{"name": "io", **region}]
    assert block.buf is not None
    block.buf[1024:1040] = bytes(range(16))
    response = post(http, "/v2/models/ident/infer", shared_request())
    assert response.status == 200, response.body
    (output,) = response.json["outputs"]
    assert output == {"name": "OUTPUT0", "datatype": "FP32", "shape": [1, 4]}
    assert bytes(block.buf[1088:1104]) == bytes(range(16))
    assert post(http, "/v2/models/ident/infer", shared_request(out_bytes=8)).status == 400
    assert post(http, "/v2/systemsharedmemory/unregister").status == 200
    assert http.used_bytes == before


def test_a_region_that_shrinks_is_an_error_not_a_crash(
    http: Stand, block: shared_memory.SharedMemory
) -> None:
    region = {"key": block.name, "byte_size": 4096}
    assert post(http, "/v2/systemsharedmemory/region/io/register", region).status == 200
    os.truncate(f"/dev/shm/{block.name}", 0)
    response = post(http, "/v2/models/ident/infer", shared_request())
    assert (response.status, "is now smaller" in response.error) == (400, True)
    post(http, "/v2/systemsharedmemory/unregister")
    os.truncate(f"/dev/shm/{block.name}", 4096)


# ------------------------------------------------------------------------------------ generate


def test_generate(http: Stand) -> None:
    response = post(http, "/v2/models/ident_BYTES/generate", {"INPUT0": "hello", "id": "7"})
    assert response.json == {
        "model_name": "ident_BYTES", "model_version": "1", "id": "7", "OUTPUT0": "hello",
    }  # fmt: skip
    body = {"INPUT0": [1, 2.5], "parameters": {"slo_ms": 500}, "temperature": 0}
    assert post(http, "/v2/models/ident/generate", body).json["OUTPUT0"] == [1, 2.5]
    bad = post(http, "/v2/models/ident/generate", {"INPUT0": [1], "other": [1]})
    assert (bad.status, "'other' is no input" in bad.error) == (400, True)
    assert "got 0 inputs" in post(http, "/v2/models/ident/generate", {}).error
    assert post(http, "/v2/models/ident/generate").status == 400
    assert post(http, "/v2/models/nope/generate", {}).status == 404


def test_generate_stream_is_one_event(http: Stand) -> None:
    response = post(http, "/v2/models/ident/versions/1/generate_stream", {"INPUT0": 3})
    assert response.headers["content-type"] == "text/event-stream; charset=utf-8"
    assert response.body.startswith(b"data: {") and response.body.endswith(b"}\n\n")
    assert json.loads(response.body[6:])["OUTPUT0"] == 3.0


# ------------------------------------------------------------------------- keys and the way out


def test_an_api_key_is_asked_for_everywhere_but_health() -> None:
    with Stand(keys=ApiKeys("secret")) as stand:
        stand.publish(one_to_one("ident"))
        data = infer("ident", [[1.0]])
        with stand.connect() as connection:
            reader = Reader(connection)
            for refused in (
                data,
                request("GET", "/metrics"),
                request("GET", "/nowhere"),
                request("GET", "/v2", headers={"Authorization": "Bearer wrong"}),
                request("GET", "/v2", headers={"X-API-Key": ""}),
            ):
                connection.sendall(refused)
                response = reader.response()
                assert (response.status, response.headers["www-authenticate"]) == (401, "Bearer")
            for allowed in (
                request("GET", "/v2/health/ready"),
                request("GET", "/v2", headers={"Authorization": "Bearer secret"}),
                request("GET", "/v2", headers={"X-API-Key": "secret"}),
                data.replace(b"\r\n", b"\r\nX-API-Key: secret\r\n", 1),
            ):
                connection.sendall(allowed)
                assert reader.response().status == 200


def test_shared_memory_is_off_by_default() -> None:
    with Stand() as stand:
        body = {"key": "/x", "byte_size": 4}
        refused = post(stand, "/v2/systemsharedmemory/region/x/register", body)
        assert (refused.status, "--allow-client-shm" in refused.error) == (501, True)
        assert post(stand, "/v2/systemsharedmemory/unregister").status == 200
        assert get(stand, "/v2/systemsharedmemory/status").json == []


def test_closing_answers_what_was_taken_and_refuses_the_rest() -> None:
    stand = Stand()
    stand.publish(one_to_one("ident"))
    runtime = stand.parts.runtime
    runtime.hold = True
    waiting = [stand.connect() for _ in range(32)]
    idle, late = stand.connect(), stand.connect()
    for i, connection in enumerate(waiting):
        connection.sendall(infer("ident", [[float(i)]]))
    wait_until(lambda: len(runtime.held) == 32)
    stand.do(stand.parts.plane.stop_accepting)
    refused = exchange(late, infer("ident", [[1.0]]))
    assert (refused.status, refused.json["reason"]) == (503, "not_ready")
    assert exchange(late, request("GET", "/v2/health/ready")).status == 503
    closing = stand.loop.create_task

    async def close() -> None:
        task = closing(stand.parts.http.close())
        await asyncio.sleep(0)  # it has begun: from now on responses say that they are the last
        runtime.release()
        await stand.parts.plane.drained()
        await task

    stand.wait(close())
    for i, connection in enumerate(waiting):
        reader = Reader(connection)
        response = reader.response()
        assert response.headers["connection"] == "close"
        assert binary_outputs(response)["OUTPUT0"] == struct.pack("<f", i)
        assert reader.at_end()
        connection.close()
    assert Reader(idle).at_end()
    idle.close()
    late.close()
    stand.close()


def test_a_second_version_is_served_beside_the_first(http: Stand) -> None:
    http.publish(one_to_one("ident", version=2))
    try:
        assert get(http, "/v2/models/ident").json["versions"] == ["1", "2"]
        body, headers = v2_body([("INPUT0", "FP32", [1, 1], bytes(4))])
        with http.connect() as connection:
            for path, version in (("ident", "2"), ("ident/versions/1", "1")):
                data = request("POST", f"/v2/models/{path}/infer", body, headers)
                assert exchange(connection, data).json["model_version"] == version
    finally:
        http.do(lambda: http.parts.table.withdraw("ident/2#0"))
