"""`serve --device simulated`: no GPU, no weights, and every answer is its own."""

import json
import re
import shutil
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import numpy as np
import pytest

import interlace
from bench.attack.repository import write_model
from interlace.device.simulated.answers import request_digest

EXAMPLE = Path(__file__).parents[2] / "examples" / "fleet"
CSV = "model,share_pct,batch,latency_ms,gpu_kind\nm,100,1,{ms},{kind}\nm,100,8,9,{kind}\n"
CONFIG = """max_batch_size: 8
input [ { name: "x" data_type: TYPE_FP32 dims: [ 2 ] } ]
output [ { name: "y" data_type: TYPE_FP32 dims: [ 8 ] } ]
"""


def declare(
    root: Path, name: str, config: str = CONFIG, ms: object = 2, kind: str = "h100"
) -> None:
    (root / name / "1").mkdir(parents=True)
    (root / name / "config.pbtxt").write_text(config)
    (root / name / "interlace.toml").write_text("slo_ms = 30000\n")
    (root / name / "1" / "profile.csv").write_text(CSV.format(ms=ms, kind=kind))


def patient_example(folder: Path) -> Path:
    """The example with SLOs that hold on a machine that is busy with other things."""
    made = shutil.copytree(EXAMPLE, folder / "example")
    for settings in made.glob("*/interlace.toml"):
        settings.write_text(re.sub("slo_ms = .*", "slo_ms = 30000", settings.read_text()))
    return made


def served(root: Path, tmp_path: Path, gpu: str = "h100", gpus: str = "1") -> interlace.Server:
    return interlace.serve(
        root, port=0, grpc_port=0, metrics_port=0, device="simulated", gpu=gpu, gpus=gpus,
        profiles=tmp_path / "profiles",
    )  # fmt: skip


def call(server: interlace.Server, path: str, body: object = None, method: str = "") -> Any:
    sent = None if body is None else json.dumps(body).encode()
    asked = Request(server.url + path, sent, method=method or None)
    with urlopen(asked, timeout=30) as reply:
        return json.loads(reply.read() or b"null")


def test_the_example_serves_and_each_answer_is_its_own(tmp_path: Path) -> None:
    with served(patient_example(tmp_path), tmp_path, gpus="2") as server:
        assert {m.name for m in server.models} == {
            "bert", "detector", "mobilenet", "resnet50", "tagger",
        }  # fmt: skip

        def ask(number: int) -> None:
            ids = [number, *range(127)]
            sent = {"name": "input_ids", "datatype": "INT64", "shape": [1, 128], "data": ids}
            (found,) = call(server, "/v2/models/bert/infer", {"inputs": [sent]})["outputs"]
            digest = request_digest("bert", [("input_ids", np.array(ids, np.int64).tobytes())])
            assert found["shape"] == [1, 768]
            assert found["data"] == [digest[i % 32] for i in range(768)]

        with ThreadPoolExecutor(8) as pool:
            list(pool.map(ask, range(64)))


def test_a_model_can_be_loaded_while_others_serve(tmp_path: Path) -> None:
    root = tmp_path / "models"
    declare(root, "one")
    with served(root, tmp_path) as server:
        declare(root, "two")
        call(server, "/v2/repository/models/two/load", {}, "POST")
        sent = {"name": "x", "datatype": "FP32", "shape": [1, 2], "data": [1, 2]}
        for name in ("one", "two"):
            (found,) = call(server, f"/v2/models/{name}/infer", {"inputs": [sent]})["outputs"]
            digest = request_digest(name, [("x", np.array([1, 2], np.float32).tobytes())])
            assert found["data"] == list(digest[:8])


def test_what_is_missing_is_told_for_each_model(tmp_path: Path) -> None:
    root = tmp_path / "models"
    declare(root, "good")
    declare(root, "elsewhere", kind="v100")
    declare(root, "nameless", config="max_batch_size: 8\n")
    declare(root, "wrong", ms="fast")
    write_model(root, "weights")
    (root / "weights" / "config.pbtxt").write_text(CONFIG)
    with served(root, tmp_path) as server:
        index = {one["name"]: one for one in call(server, "/v2/repository/index", {}, "POST")}
        assert [model.name for model in server.models] == ["good"]
        assert "v100" in index["elsewhere"]["reason"] and "h100" in index["elsewhere"]["reason"]
        assert "config.pbtxt" in index["nameless"]["reason"]
        assert "latency_ms is 'fast'" in index["wrong"]["reason"]
        assert "no profile of weights on h100" in index["weights"]["reason"]
        with pytest.raises(HTTPError):
            call(server, "/v2/models/wrong/infer", {"inputs": []})


def test_a_declared_model_is_refused_where_models_are_opened(tmp_path: Path) -> None:
    declare(tmp_path / "models", "m")
    cores = interlace.serve(
        tmp_path / "models", port=0, grpc_port=0, metrics_port=0, device="cpu", cores="0",
        profiles=tmp_path / "profiles",
    )  # fmt: skip
    with cores as server:
        (found,) = call(server, "/v2/repository/index", {}, "POST")
        assert "--device simulated" in found["reason"]


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"device": "simulated"}, "--gpu is missing"),
        ({"device": "simulated", "gpu": "h10"}, "h100"),
        ({"device": "simulated", "gpu": "h100", "gpus": "0,1"}, "expected how many"),
        ({"device": "simulated", "gpu": "h100", "gpus": "0"}, "expected how many"),
        ({"device": "cpu", "gpu": "h100"}, "--device simulated"),
        ({"device": "simulated", "gpu": "t4", "memory_bytes": 1 << 50}, "--memory"),
    ],
)
def test_what_was_asked_for_is_checked(options: dict[str, Any], expected: str) -> None:
    with pytest.raises(interlace.UserError, match=expected):
        interlace.serve(EXAMPLE, **options)
