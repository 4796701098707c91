"""Outputs of perf_analyzer and trtexec as profiles: each form, and what it must say."""

from pathlib import Path

import pytest

from interlace.core.profile import LatencyPoint
from interlace.core.user_errors import InputError
from interlace.planning.scenario import read_scenario
from interlace.profiling.profile_csv import ProfileTableError, read_tool_output

PERF = """*** Measurement Settings ***
  Batch size: 8
  Service Kind: Triton
  Stabilizing using p95 latency

Request concurrency: 1
  Client:
    Request count: 900
    Throughput: 399.9 infer/sec
    p50 latency: 2600 usec
    p90 latency: 2700 usec
    p95 latency: 2800 usec
    p99 latency: 3100 usec
    Avg HTTP time: 2590 usec (send/recv 90 usec + response wait 2500 usec)
  Server:
    Inference count: 7200
    Avg request latency: 2200 usec (overhead 20 usec + queue 30 usec + compute input 100 usec \
+ compute infer 2000 usec + compute output 50 usec)

Request concurrency: 2
  Client:
    p50 latency: 5000 usec
Inferences/Second vs. Client p95 Batch Latency
"""
PERF_CSV = """Concurrency,Inferences/Second,Client Send,Network+Server Send/Recv,Server Queue,\
Server Compute Input,Server Compute Infer,Server Compute Output,Client Recv,\
p50 latency,p90 latency,p95 latency,p99 latency
2,600,50,300,40,100,2100,50,10,5000,5100,5200,5300
1,400,50,300,30,100,2000,50,10,2600,2700,2800,3100
"""
TRTEXEC = """&&&& RUNNING TensorRT.trtexec [TensorRT v8601] # trtexec --onnx=/models/r.onnx \
--optShapes=x:4x3x224x224 --fp16
[I] === Performance summary ===
[I] Throughput: 1105.2 qps
[I] Latency: min = 1.10 ms, max = 2.0 ms, mean = 1.2 ms, median = 1.15 ms, \
percentile(90%) = 1.2 ms, percentile(95%) = 1.25 ms, percentile(99%) = 1.4 ms
[I] GPU Compute Time: min = 0.9 ms, max = 1.1 ms, mean = 1.0 ms, median = 0.99 ms
"""


def written(folder: Path, name: str, text: str) -> Path:
    path = folder / name
    path.write_text(text.replace("\\\n", ""))
    return path


@pytest.mark.parametrize(
    ("name", "text", "key", "point"),
    [
        ("r.txt", PERF, (8, 100), LatencyPoint(2.15, 2.35, 2.65, 1)),
        ("r-b8.csv", PERF_CSV, (8, 100), LatencyPoint(2.15, 2.35, 2.65, 1)),
        ("r_batch8.log", TRTEXEC, (4, 100), LatencyPoint(1.15, 1.25, 1.4, 1)),
        ("r.log", TRTEXEC.replace("--optShapes=x:4x", "--batch=16 x"), (16, 100), None),
        ("r.b2.log", TRTEXEC.replace("--optShapes=x:4x", ""), (2, 100), None),
    ],
)
def test_each_form_is_a_point_of_the_whole_gpu(
    tmp_path: Path, name: str, text: str, key: tuple[int, int], point: LatencyPoint | None
) -> None:
    found = read_tool_output(written(tmp_path, name, text), "a100")
    assert found is not None and found.kinds == frozenset()
    (profile,) = found.profiles.values()
    assert (profile.model, profile.gpu_kind, list(profile.points)) == ("r", "a100", [key])
    kept = profile.points[key]
    if point is not None:
        times = (kept.median_ms, kept.p95_ms, kept.p99_ms)
        assert times == pytest.approx((point.median_ms, point.p95_ms, point.p99_ms))


def test_other_files_are_none_of_them(tmp_path: Path) -> None:
    path = written(tmp_path, "p.csv", "model,share_pct,batch,latency_ms\na,100,1,5\n")
    assert read_tool_output(path, "a100") is None


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (PERF.replace("concurrency: 1", "concurrency: 4"), "--concurrency-range 1"),
        (PERF_CSV.replace("\n1,", "\n4,"), "--concurrency-range 1"),
        (PERF_CSV.replace("\n1,400,50,300,30,100,", "\n1,400,50,300,30,x,"), "concurrency"),
        ("trtexec\n[I] Throughput: 3 qps", "no line 'Latency: min"),
        (PERF.replace("Batch size: 8", "Batch size: 0"), "a batch of 0"),
    ],
)
def test_what_lacks_something_is_an_error_that_says_what(
    tmp_path: Path, text: str, words: str
) -> None:
    with pytest.raises(ProfileTableError, match=words):
        read_tool_output(written(tmp_path, "r.txt", text), "a100")


def test_files_of_one_model_are_parts_of_its_profile(tmp_path: Path) -> None:
    written(tmp_path, "r.txt", PERF)
    written(tmp_path, "r-b4.log", TRTEXEC)
    asked = 'gpu = "a100"\nprofiles = ["."]\n[models.r]\nrate_rps = 10\nslo_ms = 50\n'
    scenario = written(tmp_path, "s.toml", asked)
    known = read_scenario(scenario).profiles["r"]
    assert {key: one.median_ms for key, one in known.points.items()} == pytest.approx(
        {(8, 100): 2.15, (4, 100): 1.15}
    )
    written(tmp_path, "r-b8.csv", PERF_CSV)
    with pytest.raises(InputError, match="r on a100 is in another file too"):
        read_scenario(scenario)
