"""The same ``model.py`` in both servers: Triton's Python backend and Interlace answer alike."""

from __future__ import annotations

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

import pytest

from tests.repository.folders import add
from tests.serve import test_decoupled as decoupled
from tests.serve.test_model_calls import CALLER
from tests.serve.test_model_calls import CONFIG as CALLER_CONFIG
from tests.serve.test_python_backend import (
    ADD_SUB,
    IMAGES,
    IMAGES_CONFIG,
    WORDS,
    WORDS_CONFIG,
)

from . import programs
from .programs import Running
from .record import Start

#: Triton's stub has no packages of its own.
NUMPY = f"import sys\nsys.path.insert(0, {str(programs.TRITON_NUMPY)!r})\n"


def write(root: Path, before: str = "") -> Path:
    add(root, "add_sub", {"config.pbtxt": 'backend: "python"', "1/model.py": before + ADD_SUB})
    siblings = {"1/means.py": "MEAN = 0.5\n", "sizes.py": "STEP = 2\n"}
    add(root, "images", {"config.pbtxt": IMAGES_CONFIG, "1/model.py": before + IMAGES, **siblings})
    add(root, "words", {"config.pbtxt": WORDS_CONFIG, "1/model.py": before + WORDS})
    for name in ("top", "a", "b", "c"):
        add(root, name, {"config.pbtxt": CALLER_CONFIG, "1/model.py": before + CALLER})
    for name in ("streams", "other"):
        files = {"config.pbtxt": decoupled.CONFIG, "1/model.py": before + decoupled.MODEL}
        add(root, name, {**files, "interlace.toml": decoupled.SAMPLE})
    plain = decoupled.CONFIG.replace("decoupled: true", "decoupled: false")
    add(root, "upper", {"config.pbtxt": plain, "1/model.py": before + decoupled.UPPER})
    return root


@pytest.fixture(scope="module")
def both(folder: Path, start_triton: Start) -> Iterator[tuple[Running, Running]]:
    """Interlace and Triton. ``start_triton`` skips where there is none."""
    roots = write(folder / "python-ours"), write(folder / "python-theirs", NUMPY)
    ours_ports, their_ports = programs.free_ports(3), programs.free_ports(3)
    ours = programs.ours_command(
        roots[0], ours_ports, "--profiles", str(folder / "python-profiles"), "--device", "cpu"
    )
    command, env = programs.triton_command(roots[1], their_ports)
    with (
        programs.running(command, their_ports, folder / "python-triton.log", env) as theirs,
        programs.running(ours, ours_ports, folder / "python-ours.log") as own,
    ):
        yield own, theirs


def call(server: Running, method: str, path: str, body: object = None) -> tuple[int, str]:
    connection = HTTPConnection("127.0.0.1", server.http_port, timeout=60)
    try:
        connection.request(method, f"/v2/models/{path}", json.dumps(body))
        answer = connection.getresponse()
        return answer.status, answer.read().decode()
    finally:
        connection.close()


def infer(server: Running, model: str, body: object) -> tuple[int, Any]:
    status, text = call(server, "POST", f"{model}/infer", body)
    return status, json.loads(text)


def streamed(server: Running, said: str) -> tuple[int, list[str]]:
    """The status of generate_stream, and what each event says."""
    status, text = call(server, "POST", "streams/generate_stream", {"WORD": said})
    events = [json.loads(one.removeprefix("data: ")) for one in text.split("\n\n") if one]
    return status, [one.get("SAID", one.get("error")) for one in events]


def word(said: str, **more: object) -> dict[str, object]:
    tensor = {"name": "WORD", "datatype": "BYTES", "shape": [1, 1], "data": [said]}
    return {"inputs": [tensor], **more}


def floats(*names: str) -> dict[str, object]:
    values = [1.5, -2.0, 3.0, 4.25]
    tensors = [{"name": one, "datatype": "FP32", "shape": [4], "data": values} for one in names]
    return {"inputs": tensors}


IMAGE = {
    "inputs": [{"name": "IMAGE", "datatype": "UINT8", "shape": [2, 3, 4, 3], "data": [51] * 72}]
}
CALLS = [
    "a leaf x",
    "a b leaf x",
    "a b c leaf x",
    "a&b&c leaf x",
    "a&b&both leaf x",
    "a b&c leaf x",
]


@pytest.mark.parametrize(
    ("model", "body"),
    [
        ("add_sub", floats("INPUT0", "INPUT1")),
        ("add_sub", floats("INPUT0")),
        ("images", IMAGE),
        ("words", word("ünï", id="r7")),
        ("words", word("x", parameters={"top": 3}, outputs=[{"name": "HEAD"}])),
        *(("top", word(said)) for said in CALLS),
    ],
)
def test_answers_are_equal(both: tuple[Running, Running], model: str, body: object) -> None:
    ours, theirs = (infer(server, model, body) for server in both)
    assert ours[0] == theirs[0]
    assert ours[1].get("outputs") == theirs[1].get("outputs")


@pytest.mark.parametrize(
    "said",
    ["say 3", "with 2", "threads 2", "calls 2", "error 1", "iterates say 3", "iterates with 40"],
)
def test_responses_of_a_stream_are_equal(both: tuple[Running, Running], said: str) -> None:
    ours, theirs = (streamed(server, said) for server in both)
    assert ours == theirs and ours[0] == 200


@pytest.mark.parametrize(
    "said", ["INTERNAL", "NOT_FOUND", "UNAVAILABLE", "UNSUPPORTED", "INVALID_ARG", "UNKNOWN"]
)
def test_errors_of_a_model_are_equal(both: tuple[Running, Running], said: str) -> None:
    ours, theirs = (infer(server, "words", word(said)) for server in both)
    assert (ours[0], ours[1]["error"]) == (theirs[0], theirs[1]["error"])


@pytest.mark.parametrize("said", ["raise", "short list"])
def test_failures_of_a_model_begin_alike(both: tuple[Running, Running], said: str) -> None:
    ours, theirs = (infer(server, "words", word(said)) for server in both)
    begin = "Failed to process the request(s) for model 'words"
    assert ours[0] == theirs[0] == 500
    assert ours[1]["error"].startswith(begin) and theirs[1]["error"].startswith(begin)


def test_the_error_of_a_called_model_is_passed_on_with_its_code(
    both: tuple[Running, Running],
) -> None:
    """Triton turns every code of a called model into INTERNAL (1)."""
    ours, theirs = (infer(server, "top", word("b leaf none"))[1] for server in both)
    said = [answer["outputs"][0]["data"][0] for answer in (ours, theirs)]
    assert said == ["2: no such word", "1: no such word"]


def test_a_model_that_calls_itself_is_refused_here_and_hangs_there(
    both: tuple[Running, Running],
) -> None:
    status, answer = infer(both[0], "top", word("top leaf x"))
    assert status == 200 and "in a circle" in answer["outputs"][0]["data"][0]


def test_many_calls_at_once_are_all_answered(both: tuple[Running, Running]) -> None:
    with ThreadPoolExecutor(8) as threads:
        found = list(threads.map(lambda said: infer(both[0], "top", word(said)), CALLS * 5))
    assert {status for status, _ in found} == {200}
