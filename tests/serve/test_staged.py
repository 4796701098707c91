"""`interlace serve --system e2bird`: inputs staged, workers of many sizes, right answers."""

import threading
from pathlib import Path

from bench.attack.repository import write_model
from tests.serve.conftest import Start
from tests.serve.server import SLEEP, Server, Traffic


def _value(server: Server, model: str, value: float) -> float:
    status, body = server.infer(model, value)
    assert status == 200, body
    (first, *rest) = body["outputs"][0]["data"]
    assert rest == [first] * 3
    return float(first)


def _ask_all(server: Server, model: str, values: list[float]) -> dict[float, float]:
    """Every value asked at the same time, with its answer."""
    answers: dict[float, float] = {}

    def ask(value: float) -> None:
        answers[value] = _value(server, model, value)

    threads = [threading.Thread(target=ask, args=(value,)) for value in values]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30.0)
    return answers


def test_everybody_gets_his_own_answer_from_workers_side_by_side(root: Path, start: Start) -> None:
    write_model(root, "m", factor=2.0, extra=SLEEP)
    write_model(root, "n", factor=3.0)
    server = start("--system", "e2bird").wait_ready()
    assert len(server.workers()) > 2, "a worker for each size of each model"
    values = [float(number) for number in range(1, 41)]
    assert _ask_all(server, "m", values) == {value: 2.0 * value for value in values}
    assert _ask_all(server, "n", values) == {value: 3.0 * value for value in values}
    assert server.end() == 0


def test_requests_of_several_rows_take_several_slots(root: Path, start: Start) -> None:
    write_model(root, "m")
    server = start("--system", "nebird").wait_ready()
    for rows in (1, 3, 4):
        data = [float(number) for number in range(rows * 4)]
        tensor = {"name": "x", "datatype": "FP32", "shape": [rows, 4], "data": data}
        status, body = server.call("POST", "/v2/models/m/infer", {"inputs": [tensor]})
        assert status == 200, body
        assert body["outputs"][0]["data"] == [2.0 * number for number in data]


def test_reload_under_traffic_loses_nothing(root: Path, start: Start) -> None:
    write_model(root, "m", factor=2.0)
    server = start("--system", "e2bird").wait_ready()
    traffic = Traffic(lambda: server.infer("m"))
    traffic.wait_for(5)
    write_model(root, "m", factor=3.0)
    assert server.call("POST", "/v2/repository/models/m/load", {})[0] == 200
    assert _value(server, "m", 1.0) == 3.0
    seen = traffic.stop()
    assert {status for status, _ in seen} == {200}
    assert {body["outputs"][0]["data"][0] for _, body in seen} <= {2.0, 3.0}


def test_static_batches_answer_single_requests(root: Path, start: Start) -> None:
    write_model(root, "m")
    server = start("--system", "tfserving-static").wait_ready()
    values = [1.0, 2.0, 3.0]
    assert _ask_all(server, "m", values) == {value: 2.0 * value for value in values}
