"""Overload: what is known to be refused is, before its tensors are staged; and counted."""

from __future__ import annotations

import pytest

from interlace.core.errors import Reason, ServeError
from tests.server.fakes import FakeRuntime, wait_until
from tests.server.stand import Stand
from tests.server.wire import Reader, exchange, infer


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
