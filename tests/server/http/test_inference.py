"""Inference over HTTP: every form of inputs and outputs, through a socket."""

import gzip
import json
from typing import Any

import numpy as np
import pytest

from interlace.core.errors import Reason, ServeError
from interlace.core.tensor import Tensor
from interlace.server.errors import TRACEBACKS_MAX, InternalErrors
from tests.server.fakes import FakeRuntime, wait_until
from tests.server.stand import Stand
from tests.server.wire import Reader, Response, binary_outputs, exchange, infer, request, v2_body


def ask(http: Stand, data: bytes) -> Response:
    with http.connect() as connection:
        return exchange(connection, data)


def post(
    http: Stand, model: str, body: bytes | dict[str, Any], headers: dict[str, str] | None = None
) -> Response:
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    return ask(http, request("POST", f"/v2/models/{model}/infer", data, headers))


def one(datatype: str, shape: list[int], data: object) -> dict[str, object]:
    return {"inputs": [{"name": "INPUT0", "datatype": datatype, "shape": shape, "data": data}]}


#: Every datatype's values are those of `tests/server/test_tensor_json.py`.
JSON_CASES: dict[str, list[Any]] = {
    "BOOL": [True, False],
    "UINT64": [0, 2**64 - 1],
    "FP32": [1.5, -2.25],
    "BYTES": ["plain", 'quoted " and ünïcode'],
}


@pytest.mark.parametrize("datatype", JSON_CASES)
def test_json_in_json_out_keeps_every_value(http: Stand, datatype: str) -> None:
    values = JSON_CASES[datatype]
    for data in (values, [values]):
        response = post(http, f"ident_{datatype}", one(datatype, [1, 2], data))
        assert response.status == 200, response.body
        assert response.headers["content-type"] == "application/json"
        assert "inference-header-content-length" not in response.headers
        assert response.json == {
            "model_name": f"ident_{datatype}",
            "model_version": "1",
            "outputs": [{"name": "OUTPUT0", "datatype": datatype, "shape": [1, 2], "data": values}],
        }


@pytest.mark.parametrize("datatype", ["FP16", "BF16"])
def test_half_floats_have_no_json_form(http: Stand, datatype: str) -> None:
    given = post(http, f"ident_{datatype}", one(datatype, [1, 2], [1.0, 2.0]))
    assert (given.status, "no JSON form" in given.error) == (400, True)
    body, headers = v2_body([("INPUT0", datatype, [1, 2], bytes(4))])
    asked = post(http, f"ident_{datatype}", body, headers)
    assert (asked.status, "ask for binary data" in asked.error) == (400, True)


def test_not_a_number_is_written_as_python_and_triton_read_it(http: Stand) -> None:
    values = np.array([[np.nan, np.inf, -np.inf]], np.float32)
    response = ask(http, infer("ident", values, parameters={}))
    assert response.body.endswith(b'"data":[NaN,Infinity,-Infinity]}]}')


def test_tensors_that_lie_unaligned_are_moved(http: Stand, runtime: FakeRuntime) -> None:
    seen: list[int] = []

    def run(inputs: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        seen.extend(tensor.span.offset for tensor in inputs)
        return tuple(t._replace(name=t.name.replace("IN", "OUT")) for t in inputs)

    http.do(lambda: runtime.runs.update(pair=run))
    numbers = np.arange(3, dtype=np.float32)
    inputs = [("INPUT0", "UINT8", [1, 3], b"abc"), ("INPUT1", "FP32", [1, 3], numbers.tobytes())]
    body, headers = v2_body(inputs, parameters={"binary_data_output": True})
    response = post(http, "pair", body, headers)
    assert binary_outputs(response) == {"OUTPUT0": b"abc", "OUTPUT1": numbers.tobytes()}
    assert [seen[0] % 64, seen[1] % 4] == [0, 0]


def test_chunked_bodies(http: Stand) -> None:
    body, headers = v2_body(
        [("INPUT0", "FP32", [1, 2], bytes(8))], parameters={"binary_data_output": True}
    )
    chunks = b"".join(b"%x;note=1\r\n%b\r\n" % (len(c), c) for c in (body[:50], body[50:]))
    head = request("POST", "/v2/models/ident/infer", b"", headers)
    head = head.replace(b"Content-Length: 0\r\n", b"Transfer-Encoding: chunked\r\n", 1)
    response = ask(http, head + chunks + b"0\r\nTrailer: x\r\n\r\n")
    assert binary_outputs(response) == {"OUTPUT0": bytes(8)}


def test_a_client_that_merely_takes_compression_gets_floats_as_they_are(http: Stand) -> None:
    body, headers = v2_body(
        [("INPUT0", "FP32", [1, 1000], bytes(4000))], parameters={"binary_data_output": True}
    )
    taken = {"Accept-Encoding": "gzip, deflate, br"}
    assert "content-encoding" not in post(http, "ident", body, headers | taken).headers
    asked = post(http, "ident", one("FP32", [1, 1000], [0.5] * 1000), taken)
    assert asked.headers["content-encoding"] == "gzip"
    assert json.loads(gzip.decompress(asked.body))["outputs"][0]["data"] == [0.5] * 1000


def test_raw_bodies(http: Stand) -> None:
    raw = {"Inference-Header-Content-Length": "0"}
    two_rows = post(http, "fixed", bytes(range(128)), raw)
    assert two_rows.status == 200, two_rows.body
    assert binary_outputs(two_rows) == {"OUTPUT0": bytes(range(128))}
    free = post(http, "image", bytes(3 * 5 * 4), raw)
    length = int(free.headers["inference-header-content-length"])
    assert json.loads(free.body[:length])["outputs"][0]["shape"] == [1, 3, 5]
    text = post(http, "ident_BYTES", b"one element", raw)
    assert binary_outputs(text) == {"OUTPUT0": b"\x0b\0\0\0one element"}
    assert "needs a multiple of 64 bytes" in post(http, "fixed", bytes(65), raw).error
    assert "has 3" in post(http, "pair", bytes(4), raw).error


BARE = {"name": "INPUT0", "datatype": "FP32", "shape": [1, 1]}
REFUSED: dict[str, tuple[dict[str, Any] | bytes, str]] = {
    "no JSON": (b"{", "failed to parse the request JSON"),
    "not UTF-8": (b'{"inputs": "\xff"}', "failed to parse the request JSON"),
    "no inputs": ({}, "missing required field `inputs`"),
    "inputs is no list": ({"inputs": 5}, "$.inputs"),
    "shape is text": (one("FP32", "x", [1]), "$.inputs[0].shape"),  # type: ignore[arg-type]
    "unknown datatype": (one("FP33", [1, 1], [1]), "unknown datatype 'FP33'"),
    "negative size": (one("FP32", [1, -1], [1]), "shape [1, -1]"),
    "too few values": (one("FP32", [1, 2], [1]), "needs 2 values in 'data', got 1"),
    "too many values": (one("FP32", [1, 2], [1, 2, 3]), "needs 2 values in 'data', got 3"),
    "ragged": (one("FP32", [2, 2], [[1, 2], [3]]), "rows of different lengths"),
    "text for numbers": (one("FP32", [1, 1], ["x"]), "Expected `float`, got `str` - at `$[0]`"),
    "no array": (one("FP32", [1, 1], 5), "'data' must be an array"),
    "no data": ({"inputs": [BARE]}, "must have exactly one of 'data'"),
    "binary without header": (
        {"inputs": [BARE | {"parameters": {"binary_data_size": 4}}]},
        "no header Inference-Header-Content-Length",
    ),
    "wrong rank": (
        one("FP32", [1], [1]),
        "unexpected shape for input 'INPUT0' for model 'ident'. Expected [-1,-1], got [1].",
    ),
    "unknown output": (
        {**one("FP32", [1, 1], [1]), "outputs": [{"name": "NOPE"}]},
        "unexpected inference output 'NOPE' for model 'ident'",
    ),
    "bad parameter": (
        {**one("FP32", [1, 1], [1]), "parameters": {"timeout": -1}},
        "parameter 'timeout' must be whole microseconds, got -1",
    ),
    "endless deadline": (
        {**one("FP32", [1, 1], [1]), "parameters": {"slo_ms": 10**400}},
        "parameter 'slo_ms' must be a number above 0, got 1000",
    ),
    "endless timeout": (
        {**one("FP32", [1, 1], [1]), "parameters": {"timeout": 10**400}},
        "parameter 'timeout' must be whole microseconds, got 1000",
    ),
    "endless priority": (
        {**one("FP32", [1, 1], [1]), "parameters": {"priority": "9" * 4999}},
        "parameter 'priority' must be an integer of at least 0, got '999",
    ),
    "nested parameter": ({**one("FP32", [1, 1], [1]), "parameters": {"x": {}}}, "$.parameters"),
}


@pytest.mark.parametrize("field", ["other", '"INPUT0"'])
def test_arrays_in_arrays_without_end(http: Stand, field: str) -> None:
    deep = b"[" * 30_000 + b"]" * 30_000
    data = b'{"inputs":[],"%b":%b}' % (field.strip('"').encode(), deep)
    route = "generate" if field.startswith('"') else "infer"
    response = ask(http, request("POST", f"/v2/models/ident/{route}", data))
    assert (response.status, "recursion" in response.error) == (400, True), response.error


def test_a_fault_of_the_server_is_a_500_in_its_log(
    http: Stand, runtime: FakeRuntime, caplog: pytest.LogCaptureFixture
) -> None:
    before = http.used_bytes

    def fail(inputs: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        return (inputs[0]._replace(name="OUTPUT0", datatype="FP99"),)

    http.do(lambda: runtime.runs.update(ident=fail))
    response = post(http, "ident", one("FP32", [1, 1], [1]))
    assert (response.status, response.json["reason"]) == (500, "backend")
    assert "FP99" in caplog.text
    wait_until(lambda: http.used_bytes == before)


def test_a_client_cannot_fill_the_log(caplog: pytest.LogCaptureFixture) -> None:
    faults = InternalErrors()
    for number in range(10 * TRACEBACKS_MAX):
        refusal = faults.refusal(ValueError(number), "a request")
        assert refusal.reason is Reason.BACKEND
    assert len(caplog.records) == TRACEBACKS_MAX
    assert all(record.exc_info for record in caplog.records)


@pytest.mark.parametrize("case", REFUSED)
def test_malformed_requests_are_named_in_a_400(http: Stand, case: str) -> None:
    body, text = REFUSED[case]
    response = post(http, "ident", body)
    assert response.status == 400, response.body
    assert response.headers["content-type"] == "application/json"
    assert text in response.error, response.error


def test_a_binary_part_of_the_wrong_size(http: Stand) -> None:
    body, headers = v2_body([("INPUT0", "FP32", [1, 2], bytes(8))])
    for wrong in (body[:-1], body + b"x"):
        response = post(http, "ident", wrong, headers)
        assert (response.status, "but its inputs take 8 ('INPUT0' 8)" in response.error) == (
            400,
            True,
        )
    short, headers = v2_body([("INPUT0", "FP32", [1, 2], bytes(7))])
    assert "Expected 8, got 7" in post(http, "ident", short, headers).error


@pytest.mark.parametrize(
    ("data", "text"),
    [
        (b"\x05\0\0\0ab", "element 0 at byte 0: length 5 runs past"),
        (b"\x01\0\0", "4-byte length is cut off"),
        (b"\x01\0\0\0a\x01\0\0\0b", "2 were found"),
        (b"", "0 were found"),
    ],
)
def test_broken_framing_of_bytes(http: Stand, data: bytes, text: str) -> None:
    shape = [1, 3] if b"b" in data[5:] else [1, 1]
    body, headers = v2_body([("INPUT0", "BYTES", shape, data)])
    response = post(http, "ident_BYTES", body, headers)
    assert (response.status, text in response.error) == (400, True), response.error


def test_refusals_say_when_to_come_back(http: Stand, runtime: FakeRuntime) -> None:
    late = ServeError(Reason.DEADLINE, "too late", retry_after_ms=1500.0, late_ms=12.5)
    full = ServeError(Reason.OVERLOADED, "Exceeds maximum queue size", retry_after_ms=20.0)
    http.do(lambda: runtime.errors.update(ident=late, fixed=full))
    response = ask(http, infer("ident", [[1.0]]))
    assert (response.status, response.headers["retry-after"]) == (504, "2")
    assert response.json == {
        "error": "too late", "reason": "deadline", "retry_after_ms": 1500.0, "late_ms": 12.5,
    }  # fmt: skip
    response = ask(http, infer("fixed", [[1.0] * 16]))
    assert (response.status, response.headers["retry-after"]) == (429, "1")


def test_a_reply_that_cannot_be_encoded_is_a_500_and_nothing_leaks(
    http: Stand, runtime: FakeRuntime
) -> None:
    before = http.used_bytes
    http.do(lambda: runtime.runs.update(ident=lambda inputs: ()))
    wanted = [{"name": "OUTPUT0", "parameters": {"binary_data": True}}]
    response = ask(http, infer("ident", [[1.0]], outputs=wanted))
    assert (response.status, "gave no output 'OUTPUT0'" in response.error) == (500, True)

    def elsewhere(inputs: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        span = inputs[0].span._replace(arena=12345)
        return (inputs[0]._replace(name="OUTPUT0", span=span),)

    http.do(lambda: runtime.runs.update(ident=elsewhere))
    assert ask(http, infer("ident", [[1.0]])).status == 500
    wait_until(lambda: http.used_bytes == before)


def full(late_ms: float) -> ServeError:
    return ServeError(Reason.OVERLOADED, "no time", retry_after_ms=late_ms, late_ms=late_ms)


@pytest.fixture
def refusing(http: Stand, runtime: FakeRuntime) -> FakeRuntime:
    """The runtime refuses model 'ident', which would be a minute late."""
    http.do(lambda: runtime.errors.update(ident=full(60_000.0)))
    return runtime


def submitted(http: Stand, runtime: FakeRuntime) -> int:
    return int(http.do(lambda: runtime.requests))


def test_the_like_of_a_refused_request_is_refused_unasked(
    http: Stand, refusing: FakeRuntime
) -> None:
    before, turned = submitted(http, refusing), len(refusing.refused_unasked)
    statistics = http.parts.table.resolve("ident").statistics
    refused = sum(statistics.refusals.values())
    with http.connect() as connection:
        reader = Reader(connection)
        for _ in range(5):
            connection.sendall(infer("ident", [[1.0] * 5000]))  # 20 kB: more than one read
            response = reader.response()
            assert (response.status, response.json["reason"]) == (429, "overloaded")
            assert response.headers["retry-after"] == "60"
    assert submitted(http, refusing) == before + 1
    assert refusing.refused_unasked[turned:] == [("ident/1#0", 1)] * 4
    assert sum(statistics.refusals.values()) == refused + 5
    wait_until(lambda: http.used_bytes == 0)


def test_others_are_asked_for(http: Stand, refusing: FakeRuntime) -> None:
    """Another size of request, another deadline and another model may have a place."""
    with http.connect() as connection:
        assert exchange(connection, infer("ident", [[1.0]])).status == 429
        http.do(refusing.errors.clear)
        assert exchange(connection, infer("ident", [[1.0]])).status == 429
        assert exchange(connection, infer("ident", [[1.0, 2.0]])).status == 200
        more = {"binary_data_output": True, "priority": 1}
        assert exchange(connection, infer("ident", [[1.0]], parameters=more)).status == 200
        assert exchange(connection, infer("image", [[[1.0]] * 3])).status == 200


def test_a_change_in_the_server_ends_it(http: Stand, refusing: FakeRuntime) -> None:
    with http.connect() as connection:
        assert exchange(connection, infer("ident", [[3.0]])).status == 429
        http.do(refusing.errors.clear)

        def change() -> None:
            refusing.changes += 1

        http.do(change)
        assert exchange(connection, infer("ident", [[3.0]])).status == 200


def test_time_ends_it(http: Stand, runtime: FakeRuntime) -> None:
    http.do(lambda: runtime.errors.update(ident=full(0.1)))
    with http.connect() as connection:
        assert exchange(connection, infer("ident", [[4.0]])).status == 429
        http.do(runtime.errors.clear)

        def again() -> bool:
            return exchange(connection, infer("ident", [[4.0]])).status == 200

        wait_until(again)
