"""What is made of the figures of servers: medians, ratios by repetition, points of a curve."""

import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bench.front import front
from bench.harness.command import run
from bench.mix.run import ratio, table
from bench.overload.run import points
from bench.peers import models, wire
from bench.peers.summarise import FILE, summarise
from interlace.proto.messages import ModelInferRequest


def _row(rep: int, peer: str, rps: float, others: float = 0.0) -> dict[str, Any]:
    full = {"rps": rps, "others_cpus": others}
    times = {"p50_ms": 100.0 / rps, "p99_ms": 200.0 / rps}
    row = {"rep": rep, "peer": peer, "model": "echo", "proto": "http", "verify": "ok"}
    return {**row, "full": full, "alone": times, "half": times}


def _kept(path: Path) -> Path:
    rows = [_row(rep, peer, rps * (1 + rep)) for rep in (0, 1) for peer, rps in
            (("ours", 30.0), ("triton", 10.0))]  # fmt: skip
    rows += [_row(2, "triton", 1.0, others=0.9)]  # the machine was busy: left out
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def test_ratios_are_taken_by_repetition_and_busy_windows_are_left_out(tmp_path: Path) -> None:
    found = summarise(_kept(tmp_path / FILE)).figures
    (over,) = found["ratios"]
    assert over["peer"] == "triton"
    assert over["full_rps"] == {"median": 3.0, "min": 3.0, "max": 3.0, "n": 2}
    rates = {one["peer"]: one["full_rps"]["median"] for one in found["figures"]}
    assert rates == {"ours": 45.0, "triton": 15.0}


def test_the_command_sums_a_file_up_and_keeps_it(tmp_path: Path) -> None:
    run(summarise, [str(_kept(tmp_path / FILE)), "--out", str(tmp_path)])
    kept = json.loads((tmp_path / "peers-summarise.json").read_text())
    assert kept["figures"]["ratios"]
    assert {"date", "command", "commit", "processor", "gpu", "torch"} <= set(kept)


def test_ours_is_compared_with_the_best_tuning_of_any_peer() -> None:
    rows = [
        {"peer": peer, "seed": seed, "load": 0.4, "goodput_rps": rate * seed}
        for seed in (1, 2)
        for peer, rate in (("ours", 6.0), ("triton-1x1", 2.0), ("mosec-1x1", 3.0))
    ]
    assert ratio(rows, "goodput_rps") == "2.00 (2.00-2.00)"
    assert table(rows, "goodput_rps").cells[0] == ["ours", "9.000"]


def test_a_curve_has_its_spread_in_parts_of_the_own_capacity() -> None:
    rows = [
        {"peer": "ours", "capacity_rps": 10.0, "curve": [{"factor": 1.0, "goodput_rps": rate}]}
        for rate in (5.0, 7.0, 9.0)
    ]
    assert points(rows, "ours", "goodput_rps", scale=True) == [(1.0, 0.7, 0.5, 0.9)]


def test_both_front_ends_answer_every_call() -> None:
    cores = os.sched_getaffinity(0)
    try:
        found = front(connections=(2,), seconds=0.1).figures
    finally:
        os.sched_setaffinity(0, cores)
    assert {(one["protocol"], one["tensor"]) for one in found} == {
        (protocol, tensor) for protocol in ("http", "grpc") for tensor in ("echo", "img")
    }
    assert all(one["ok"] == one["calls"] > 0 for one in found)


@pytest.mark.parametrize("model", ["echo", "cnn", "img"])
def test_grpc_message(model: str) -> None:
    (x,) = models.sample(model)
    message = ModelInferRequest.FromString(wire.request("triton", model, "grpc").body)
    assert (message.model_name, message.outputs[0].name) == (model, "OUTPUT")
    (tensor,) = message.inputs
    assert (tensor.name, tensor.datatype, tuple(tensor.shape)) == ("INPUT", "FP32", x.shape)
    assert message.raw_input_contents[0] == x.tobytes()


def test_http_message() -> None:
    (x,) = models.sample("echo")
    call = wire.request("ours_python", "echo")
    length = int(call.headers["Inference-Header-Content-Length"])
    head = json.loads(call.body[:length])
    assert head["inputs"][0]["shape"] == [1, 16]
    assert np.array_equal(np.frombuffer(call.body[length:], np.float32), x[0])


def test_unknown_protocol() -> None:
    with pytest.raises(ValueError, match="does not speak"):
        wire.request("mosec", "cnn", "grpc")
