"""The load generator against a server whose behaviour is known."""

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from interlace.cli.bench import lateness, remarks
from interlace.core.model import SampleValue
from interlace.core.user_errors import UserError
from interlace.load.open_loop import (
    UNANSWERED,
    ArrivalProcess,
    CallSample,
    ModelLoadReport,
    load_test,
    report,
    send_times,
)
from interlace.load.v2_client import V2Client, make_call
from tests.cli.planning import invoke

from .fakeserver import Behaviour, FakeServer

REFUSAL = b'{"error": "it would be late by 3 ms", "reason": "deadline"}'


def load(
    behave: Callable[[int], Behaviour],
    rate_rps: float = 100.0,
    seconds: float = 0.5,
    connections: int = 8,
) -> ModelLoadReport:
    with FakeServer(behave) as fake:
        server = V2Client(fake.url)
        times_s = send_times(ArrivalProcess.UNIFORM, rate_rps, seconds, 1)
        return load_test([make_call(server, "echo", {}, None)], [times_s], connections, seconds)[0]


def test_every_request_is_answered_and_counted() -> None:
    result = load(lambda call: Behaviour())
    assert result.requests == 50
    assert result.offered_rps == pytest.approx(100.0)
    assert result.answered_rps == pytest.approx(100.0)
    assert result.unanswered == 0
    assert result.slo_ms == 250.0  # the server's own
    assert result.p50_ms is not None
    assert result.lag_p99_ms is not None
    assert result.lag_p99_ms >= 0


def test_each_model_gets_its_own_requests() -> None:
    with FakeServer() as fake:
        server = V2Client(fake.url)
        calls = [make_call(server, name, {}, None) for name in ("echo", "other")]
        times_s = [send_times(ArrivalProcess.UNIFORM, rate, 0.5, 1) for rate in (60.0, 20.0)]
        echo, other = load_test(calls, times_s, 8, 0.5)
    assert (echo.requests, other.requests) == (30, 10)
    assert (echo.attainment, other.attainment) == (1.0, 1.0)
    assert fake.paths.count("/v2/models/echo/infer") == 30
    assert fake.paths.count("/v2/models/other/infer") == 10


def test_a_stall_is_felt_by_all_who_were_due_during_it() -> None:
    # One connection, and the first call takes 300 ms: a closed loop would report one slow call.
    result = load(
        lambda call: Behaviour(delay_s=0.3 if call == 0 else 0.0), seconds=0.3, connections=1
    )
    assert result.requests == 30
    assert result.p50_ms is not None
    assert result.p50_ms > 100.0
    assert result.crowded >= 25
    assert any("waited for a connection" in line for line in remarks(result))


def test_refusals_are_counted_by_reason_and_are_no_goodput() -> None:
    result = load(
        lambda call: Behaviour(status=504, body=REFUSAL) if call % 2 else Behaviour(status=200)
    )
    assert result.refused == {"deadline": 25}
    assert result.attainment == pytest.approx(0.5)
    assert result.goodput_rps == pytest.approx(50.0)
    assert any("refused: deadline 25" in line for line in remarks(result))


def test_an_error_without_a_reason_is_its_status() -> None:
    assert load(lambda call: Behaviour(status=500, body=b"oops")).refused == {"HTTP 500": 50}


def test_a_server_that_hangs_up_is_reconnected_to() -> None:
    result = load(lambda call: Behaviour(status=-1 if call < 3 else 200))
    assert sum(result.refused.values()) == 3
    assert result.answered_rps == pytest.approx(94.0)
    assert result.unanswered == 0


def test_late_answers_are_answers_but_not_good() -> None:
    result = load(lambda call: Behaviour(delay_s=0.3), rate_rps=20, seconds=0.5, connections=16)
    assert result.answered_rps == pytest.approx(20.0)
    assert result.goodput_rps == 0.0


def test_latency_runs_from_when_it_was_due() -> None:
    late = CallSample(0, due_s=1.0, latency_s=0.25, status=200, sent_s=1.2)
    never = CallSample(0, due_s=1.5, latency_s=0.5, status=UNANSWERED)
    result = report("m", 100.0, [late, never], seconds=2.0)
    assert result.p50_ms == pytest.approx(250.0)
    assert result.lag_p99_ms == pytest.approx(200.0)
    assert result.doubtful
    assert result.attainment == 0.0
    assert result.unanswered == 1
    assert "200.00 ms (p99)" in lateness([result])[0]
    assert lateness([result])[1].startswith("warning: that is over 10% of the SLO of m")


def test_the_call_is_v2_binary_with_sizes_from_the_config() -> None:
    with FakeServer() as fake:
        ask = make_call(V2Client(fake.url), "echo", {}, slo_ms=40.0)
    head, _, rest = ask.encoded.payload.partition(b"\r\n\r\n")
    length = int(head.split(b"Inference-Header-Content-Length: ")[1].split(b"\r\n")[0])
    header = json.loads(rest[:length])
    assert header["parameters"] == {"binary_data_output": True, "slo_ms": 40.0}
    assert [tensor["shape"] for tensor in header["inputs"]] == [[1, 4], [1, 12]]
    sizes = [tensor["parameters"]["binary_data_size"] for tensor in header["inputs"]]
    assert sizes == [16, 96]
    assert len(rest) - length == 112
    assert ask.slo_ms == 40.0


def test_a_shape_can_be_stated_and_is_checked() -> None:
    with FakeServer() as fake:
        server = V2Client(fake.url)
        ask = make_call(server, "echo", {"echo/ids": (1, 5)}, None)
        assert b'"shape":[1,5]' in ask.encoded.payload
        with pytest.raises(UserError, match=r"--shape echo/ids: 3 sizes given"):
            make_call(server, "echo", {"echo/ids": (1, 5, 2)}, None)


def test_values_can_be_stated_and_are_checked(tmp_path: Path) -> None:
    np.save(tmp_path / "ids.npy", np.array([7, 8]))
    with FakeServer() as fake:
        server = V2Client(fake.url)
        for value in (SampleValue("[7, 8]"), SampleValue(file=str(tmp_path / "ids.npy"))):
            ask = make_call(server, "echo", {"echo/ids": (1, 3)}, None, {"echo/ids": value})
            assert ask.encoded.payload.endswith(np.array([7, 8, 7], np.int64).tobytes())
        for key, text, words in (
            ("echo/idz", "[1]", "--value echo/idz: echo takes"),
            ("echo/ids", '["a"]', "--value ids: .*; the model takes INT64"),
            ("echo/ids", "[1", "--value ids: "),
        ):
            with pytest.raises(UserError, match=words):
                make_call(server, "echo", {}, None, {key: SampleValue(text)})


def command(*arguments: str) -> tuple[int, str]:
    result = invoke(*arguments)
    text = result.output if result.exception is None else f"{result.output}{result.exception}"
    return result.exit_code, text


def test_the_command_prints_json_for_several_models() -> None:
    with FakeServer() as fake:
        code, text = command("bench", fake.url, "echo=40", "--seconds", "0.3", "--json")
    assert code == 0
    [result] = json.loads(text)
    assert result["model"] == "echo"
    assert result["offered_rps"] > 0


def test_the_command_prints_a_table() -> None:
    with FakeServer() as fake:
        code, text = command("bench", fake.url, "echo", "--rate", "40", "--seconds", "0.3")
    assert code == 0
    assert "good/s" in text
    assert "the load generator itself was late by" in text


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("bench", "localhost:1", "x"), "no answer from http://localhost:1"),
        (("bench", "ftp://x", "x"), "give http(s)://HOST:PORT"),
        (("bench", "http://x", "x", "--ca", "ca.crt"), "give https://x, or no --ca"),
        (("bench", "x", "x", "--ca", "none.crt"), "none.crt: [Errno 2] No such file"),
        (("bench", "localhost:1", "x=fast"), "'fast' is not a number"),
        (("bench", "localhost:1", "x", "--rate", "-3"), "--rate is -3; expected a number above 0"),
        (("bench", "localhost:1", "x", "--shape", "y"), "expected NAME=VALUE"),
    ],
)
def test_mistakes_are_one_sentence(arguments: tuple[str, ...], message: str) -> None:
    code, text = command(*arguments)
    assert code != 0
    assert message in text


def test_the_key_in_a_file_is_sent(tmp_path: Path) -> None:
    (tmp_path / "key").write_text("secret\n")
    with FakeServer(key="secret") as fake:
        words = ("bench", fake.url, "echo=40", "--seconds", "0.3", "--json")
        said = command(*words)[1]
        assert "401" in said and "--api-key-file FILE" in said
        code, text = command(*words, "--api-key-file", str(tmp_path / "key"))
    assert code == 0
    assert json.loads(text)[0]["attainment"] == 1.0


def test_an_unknown_model_is_the_servers_own_words() -> None:
    with FakeServer() as fake:
        code, text = command("bench", fake.url, "nope")
    assert code != 0
    assert "Request for unknown model" in text
