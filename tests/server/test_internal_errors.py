"""Faults of the server: in a word to the client, with a bounded number of tracebacks to the log."""

import pytest

from interlace.core.errors import Reason
from interlace.server.internal_errors import TRACEBACKS_MAX, InternalErrors
from tests.server.fakes import FakeRuntime
from tests.server.stand import Stand
from tests.server.wire import exchange, infer


def test_a_client_cannot_fill_the_log(caplog: pytest.LogCaptureFixture) -> None:
    faults = InternalErrors()
    for number in range(10 * TRACEBACKS_MAX):
        refusal = faults.refusal(ValueError(number), "a request")
        assert refusal.reason is Reason.BACKEND
    assert len(caplog.records) == TRACEBACKS_MAX
    assert all(record.exc_info for record in caplog.records)


def test_a_fault_is_a_500_and_the_connection_goes_on(http: Stand, runtime: FakeRuntime) -> None:
    http.do(lambda: runtime.runs.update(ident=lambda inputs: (None,)))
    with http.connect() as connection:
        for _ in range(3):
            response = exchange(connection, infer("ident", [[1.0]]))
            assert (response.status, "see its log" in response.error) == (500, True)
        http.do(runtime.runs.clear)
        assert exchange(connection, infer("ident", [[1.0]])).status == 200
