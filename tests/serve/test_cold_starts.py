"""More models than memory, over HTTP: any model answers, each request once, and states are told."""

from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from time import monotonic, sleep

import pytest

from bench.attack.repository import write_model
from interlace.cli.top import read_metrics
from interlace.formats.page_cache import cached_part
from tests.cli.planning import invoke
from tests.serve.conftest import Start
from tests.serve.server import Server

WIDTH = 512  # a model of three layers, 3 MB
CODE = """
import torch
INPUTS = {{"x": ("FP32", (4,))}}
class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.parts = torch.nn.ModuleList(
            torch.nn.Linear({width}, {width}, bias=False) for _ in range(3)
        )
        for part in self.parts:
            torch.nn.init.eye_(part.weight)
        self.parts[2].weight.data *= {factor}
    def forward(self, x):
        wide = torch.nn.functional.pad(x, (0, {width} - 4))
        for part in self.parts:
            wide = part(wide)
        return {{"y": wide[:, :4]}}
def create_model():
    return Net()
"""
MODELS = {f"m{factor}": float(factor) for factor in range(2, 8)}


def _write(root: Path, name: str, factor: float, width: int = WIDTH) -> None:
    (root / name / "1").mkdir(parents=True, exist_ok=True)
    (root / name / "1" / "model.py").write_text(CODE.format(width=width, factor=factor))
    (root / name / "interlace.toml").write_text("slo_ms = 30000\nmax_batch = 4\n")


def _ask(server: Server, name: str) -> tuple[str, int, list[float]]:
    x = {"name": "x", "shape": [1, 4], "datatype": "FP32", "data": [1.0, 2.0, 3.0, 4.0]}
    status, body = server.call("POST", f"/v2/models/{name}/infer", {"inputs": [x]})
    return name, status, body["outputs"][0]["data"] if status == 200 else []


def test_any_model_answers_in_a_third_of_their_memory(root: Path, start: Start) -> None:
    for name, factor in MODELS.items():
        _write(root, name, factor)
    (root / "m2" / "interlace.toml").write_text("slo_ms = 30000\n[memory]\nresident = true\n")
    _write(root, "huge", 2.0, width=2 * WIDTH)
    write_model(root, "bare")  # it has no weights
    server = start("--memory", "8MB", "--cold", "copy").wait_ready(180.0)
    assert "huge is not served: its weights take 12.6 MB" in server.text
    asked = [*MODELS] * 6
    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(lambda name: _ask(server, name), asked))
    assert Counter(name for name, _, _ in answers) == Counter(asked)
    for name, status, values in answers:
        assert status == 200, (name, status)
        assert values == [MODELS[name] * x for x in (1.0, 2.0, 3.0, 4.0)]
    assert server.infer("bare")[0] == 200
    metrics = read_metrics(server.call("GET", "/metrics")[1])
    starts = {s.labels["model"]: s.value for s in metrics.samples["interlace_cold_starts_total"]}
    held = metrics.samples["interlace_model_weights_held_bytes"]
    assert {*MODELS} <= {*starts}
    assert sum(starts.values()) >= len(MODELS) - 1
    assert 0 < sum(one.value for one in held) <= 8e6
    assert metrics.value("interlace_model_weights_state", model="m2", state="resident") == 1.0
    _, index = server.call("POST", "/v2/repository/index", {})
    reasons = {one["name"]: one.get("reason", "") for one in index}
    assert reasons["m2"] == "weights: resident"
    assert {reasons[name] for name in MODELS} <= {
        f"weights: {state}" for state in ("resident", "loading", "cold")
    }
    assert reasons["bare"] == ""
    assert server.end() == 0


def test_a_bound_serves_a_model_that_is_larger_than_the_memory(root: Path, start: Start) -> None:
    _write(root, "part", 9.0, width=2 * WIDTH)
    said = "slo_ms = 30000\nmax_batch = 1\n[memory]\nmax_mb = 4.5\n"
    (root / "part" / "interlace.toml").write_text(said)
    server = start("--memory", "8MB", "--cold", "copy").wait_ready(100.0)
    for _ in range(3):
        assert _ask(server, "part") == ("part", 200, [9.0, 18.0, 27.0, 36.0])
    metrics = read_metrics(server.call("GET", "/metrics")[1])
    held_bytes = metrics.value("interlace_model_weights_held_bytes", model="part")
    assert 4.1e6 < held_bytes < 4.5e6  # one of its three layers
    assert server.end() == 0


def test_weights_that_leave_give_the_page_cache_back(root: Path, cache: Path, start: Start) -> None:
    """What plans leave in their files, too; a model larger than the memory is not served."""
    for name, factor in MODELS.items():
        _write(root, name, factor)
    _write(root, "huge", 2.0, width=2 * WIDTH)
    server = start("--memory", "8MB", "--host-memory", "7MB").wait_ready(180.0)
    assert "huge is not served: its weights take 12.6 MB, and the memory for weights is 8.0" in (
        server.text
    )
    # The larger ones are those of models that are not served here.
    known = [one for one in (cache / "weights").iterdir() if one.is_file()]
    files = [one for one in known if one.stat().st_size < 4e6]
    assert len(files) >= len(MODELS)
    for _ in range(3):
        for name, factor in MODELS.items():
            answer = _ask(server, name)
            assert answer == (name, 200, [factor * x for x in (1.0, 2.0, 3.0, 4.0)])
    end_s = monotonic() + 30.0
    while (held := sum(cached_part(one) * one.stat().st_size for one in files)) > 7e6:
        assert monotonic() < end_s, f"{held / 1e6:.1f} MB of the weights are in the page cache"
        sleep(0.1)
    assert server.end() == 0


@pytest.mark.parametrize(
    ("option", "value", "said"),
    [
        ("--cold", "copy", "--cold says how weights come and go: it takes --memory"),
        ("--host-memory", "1GB", "--host-memory bounds where weights come from: it takes --memory"),
    ],
)
def test_what_takes_a_memory(root: Path, option: str, value: str, said: str) -> None:
    words = ["serve", str(root), option, value]
    assert said in str(invoke(*words).exception)
