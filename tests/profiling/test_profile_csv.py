"""Profiles from a table: what is read, and where exactly a table is wrong."""

import math
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from interlace.core.profile import LatencyPoint
from interlace.core.user_errors import InputError
from interlace.planning.scenario import read_scenario
from interlace.profiling.profile_csv import (
    ProfileTableError,
    profiles_text,
    read_profiles,
    read_tool_output,
)

HEAD = "model,share_pct,batch,latency_ms"


def table(folder: Path, *lines: str) -> Path:
    path = folder / "profiles.csv"
    path.write_text("\n".join(lines) + "\n")
    return path


def test_what_is_left_out_is_the_median(tmp_path: Path) -> None:
    path = table(tmp_path, "# by hand", f"{HEAD},p99_ms,weights_mb", "", "a,100,1,5.5,8,100")
    profile = read_profiles(path, "h100").profiles["a"]
    point = profile.points[1, 100]
    assert (point.median_ms, point.p95_ms, point.p99_ms) == (5.5, 5.5, 8.0)
    assert (profile.weights_bytes, profile.activation_bytes) == (100 * 10**6, 0)


def test_a_table_from_when_power_was_measured_is_read(tmp_path: Path) -> None:
    path = table(tmp_path, f"{HEAD},power_w,idle_w", "a,100,8,4,300,100", "a,50,8,8,,")
    points = read_profiles(path, "h100").profiles["a"].points
    assert [point.median_ms for point in points.values()] == [4, 8]


def test_rows_of_other_kinds_are_passed_over(tmp_path: Path) -> None:
    path = table(tmp_path, f"gpu_kind,{HEAD}", "t4,a,100,1,9", "h100,a,100,1,2", ",b,100,1,3")
    found = read_profiles(path, "h100")
    assert found.kinds == {"t4", "h100"}
    assert found.profiles["a"].points[1, 100].median_ms == 2
    assert set(found.profiles) == {"a", "b"}
    assert set(read_profiles(path, "a100").profiles) == {"b"}


@pytest.mark.parametrize(
    ("lines", "place", "words"),
    [
        ((HEAD, "a,100,1,nan"), "2:9", "latency_ms is 'nan'"),
        ((HEAD, "a,100,1,-2"), "2:9", "latency_ms is '-2'"),
        ((HEAD, "a,100,1,0"), "2:9", "a number above 0"),
        ((HEAD, "a,101,1,5"), "2:3", "share_pct is '101'"),
        ((HEAD, "a,50,1.5,5"), "2:6", "batch is '1.5'"),
        ((HEAD, "a,50,1,5", "a,50,1,6"), "3:6", "batch is '1'"),
        ((HEAD, ",50,1,5"), "2:1", "model is ''"),
        ((HEAD, "a,50,1"), "2:1", "3 values for 4 columns"),
        (("# c", "model,batch,latency_ms", "a,1,5"), "2:1", "no column share_pct"),
        ((f"{HEAD},speed", "a,50,1,5,1"), "1:1", "column 'speed'"),
        ((HEAD,), "1:1", "no rows"),
    ],
)
def test_errors_name_the_place(
    tmp_path: Path, lines: tuple[str, ...], place: str, words: str
) -> None:
    path = table(tmp_path, *lines)
    with pytest.raises(ProfileTableError) as caught:
        read_profiles(path, "h100")
    assert str(caught.value).startswith(f"{path}:{place}: ")
    assert words in str(caught.value)


@given(text=st.text(max_size=40))
def test_any_value_is_a_latency_or_an_error(
    tmp_path_factory: pytest.TempPathFactory, text: str
) -> None:
    path = tmp_path_factory.mktemp("csv") / "p.csv"
    path.write_text(f"{HEAD}\na,100,1,{text}\n", encoding="utf-8", errors="replace")
    try:
        found = read_profiles(path, "h100").profiles
    except ProfileTableError as error:
        assert f"{path}:" in str(error)
    else:
        latency_ms = found["a"].points[1, 100].median_ms
        assert math.isfinite(latency_ms)
        assert latency_ms > 0


def test_what_is_written_is_read_back(tmp_path: Path) -> None:
    path = table(
        tmp_path,
        f"gpu_kind,{HEAD},p95_ms,p99_ms,samples,weights_mb,activation_mb,load_ms,l2_util,dram_util",
        "h100,a,100,8,4,5,6,30,100,20.5,7,0.25,0.5",
        "h100,a,50,1,2,2.5,3,9,100,20.5,7,,",
        "h100,b,100,1,1,1,1,1,0,0,0,,",
    )
    found = read_profiles(path, "h100").profiles
    again = table(tmp_path, profiles_text(found))
    assert read_profiles(again, "h100").profiles == found


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
