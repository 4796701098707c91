"""An app of three stages beside its parts: what the whole costs, and the hand-over of a stage.

Three models that sleep, one after the other. A client with one connection calls each alone, then
the app, in turns. The hand-over is what a stage takes besides its wait and run: the server's time
for requests of the app, less the times of its stages, by the number of stages.
"""

import json
import re
import tempfile
import time
from http.client import HTTPConnection
from pathlib import Path
from typing import Annotated, Final

from bench.attack.repository import write_model
from bench.attack.stand import Stand
from bench.harness import Report, Row, main, percentile

_MODELS: Final = ("first", "second", "third")
_APP: Final = """
slo_ms = 30000
max_batch = 4
[app.inputs]
x = { datatype = "FP32", dims = [4] }
[app.outputs]
t2 = { datatype = "FP32", dims = [4] }
"""
_TENSOR: Final = {"name": "x", "datatype": "FP32", "shape": [1, 4], "data": [1.0] * 4}


def stages(
    *,
    rounds: Annotated[int, "of each model and the app"] = 300,
    sleep_ms: Annotated[float, "that each model takes"] = 5.0,
) -> Report:
    """Latency of the app over the sum of its models' alone, and the hand-over in ms."""
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder) / "models"
        _write(root, sleep_ms)
        server = Stand(root, Path(folder) / "profiles")
        try:
            server.wait_ready(600.0)
            parts, whole = _called(server.http_port, rounds)
            spent_ms, staged_ms = _times(server.metrics_port)
        finally:
            server.stop()
    rows = [
        Row(f"{what}, {part:g} %", None, percentile(values, part) or 0.0, " ms")
        for what, values in (("sum of the parts", parts), ("app", whole))
        for part in (50.0, 99.0)
    ]
    ratio = (percentile(whole, 50.0) or 0.0) / (percentile(parts, 50.0) or 1.0)
    rows.append(Row("app over the sum of its parts, median", 1.05, ratio))
    hand_over_ms = (spent_ms - staged_ms) / rounds / len(_MODELS)
    rows.append(Row("hand-over of a stage, mean", 0.2, hand_over_ms, " ms"))
    return Report(rows)


def _write(root: Path, sleep_ms: float) -> None:
    text = _APP
    for place, name in enumerate(_MODELS):
        write_model(root, name, extra=f"time.sleep({sleep_ms / 1000.0})")
        read = f"t{place - 1}" if place else "x"
        text += f'[app.stages.{name}]\nmodel = "{name}"\n'
        text += f'inputs = {{ x = "{read}" }}\noutputs = {{ y = "t{place}" }}\n'
    (root / "app").mkdir()
    (root / "app" / "interlace.toml").write_text(text)


def _called(port: int, rounds: int) -> tuple[list[float], list[float]]:
    """The latencies in ms of all models together, and of the app."""
    connection = HTTPConnection("127.0.0.1", port, timeout=100.0)
    body = json.dumps({"inputs": [_TENSOR]})

    def call_ms(model: str) -> float:
        began_s = time.perf_counter()
        connection.request("POST", f"/v2/models/{model}/infer", body)
        answer = connection.getresponse()
        text = answer.read()
        assert answer.status == 200, text
        return (time.perf_counter() - began_s) * 1000.0

    parts, whole = [], []
    for _ in range(rounds):
        parts.append(sum(call_ms(model) for model in _MODELS))
        whole.append(call_ms("app"))
    return parts, whole


def _times(port: int) -> tuple[float, float]:
    """In ms, of all requests of the app: the server's time for them, and that of their stages."""
    connection = HTTPConnection("127.0.0.1", port, timeout=100.0)
    connection.request("GET", "/metrics")
    page = connection.getresponse().read().decode()

    def total(name: str) -> float:
        found = re.findall(rf'^{name}{{model="app".*}} (\S+)$', page, re.M)
        return sum(map(float, found))

    spent_ms = total("nv_inference_request_duration_us") / 1000.0
    return spent_ms, total("interlace_stage_wait_ms_total") + total("interlace_stage_run_ms_total")


if __name__ == "__main__":
    main(stages)
