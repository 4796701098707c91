"""The real perf_analyzer in every mode that people use, and that it believes what it measured."""

import csv
import os
import subprocess
from pathlib import Path

import pytest

from .programs import Running

#: Short windows, loose stability, many tries: the point is that it works, not how fast.
SHORT = ("-p", "400", "-r", "10", "-s", "900", "--max-threads", "4")
RUNS = {
    "http": ("-i", "http", "--concurrency-range", "4"),
    "http_json": ("-i", "http", "--input-tensor-format", "json", "--output-tensor-format", "json"),
    "http_rate": ("-i", "http", "--request-rate-range", "50", "--request-distribution", "poisson"),
    "http_async": ("-i", "http", "--async", "--concurrency-range", "4"),
    "http_batch": ("-i", "http", "-b", "4"),
    "http_shm": ("-i", "http", "--shared-memory", "system"),
    "grpc": ("-i", "grpc", "--concurrency-range", "4"),
    "grpc_async": ("-i", "grpc", "--async", "--concurrency-range", "4"),
    "grpc_rate": ("-i", "grpc", "--request-rate-range", "50"),
    "grpc_shm": ("-i", "grpc", "--shared-memory", "system"),
    "grpc_streaming": ("-i", "grpc", "--streaming", "--concurrency-range", "4"),
    "grpc_streaming_rate": ("-i", "grpc", "--streaming", "--request-rate-range", "50"),
    "grpc_compressed": ("-i", "grpc", "--grpc-compression-algorithm", "gzip"),
}
SMOKE = ("http", "grpc_streaming")


def perf(binary: Path, server: Running, model: str, *more: str) -> str:
    """Its output; the test fails with it if the exit code is not 0."""
    url = server.grpc if "grpc" in more else server.http
    command = [str(binary), "-m", model, "-u", url, *SHORT, *more]
    env = {**os.environ, "LD_LIBRARY_PATH": str(binary.parent / "lib")}
    done = subprocess.run(command, capture_output=True, text=True, timeout=90, env=env, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


@pytest.mark.parametrize(
    "run",
    [pytest.param(run, marks=() if run in SMOKE else pytest.mark.long) for run in RUNS],
)
def test_run(ours: Running, perf_analyzer: Path, tmp_path: Path, run: str) -> None:
    out = tmp_path / "figures.csv"
    text = perf(perf_analyzer, ours, "ident", *RUNS[run], "-f", str(out), "--verbose-csv")
    assert "Failed" not in text, text
    (row,) = csv.DictReader(out.read_text().splitlines())
    assert float(row["Inferences/Second"]) > 10, text
    assert float(row["p99 latency"]) > 0, text
    for server_side in ("Server Queue", "Server Compute Input", "Server Compute Infer"):
        assert float(row[server_side]) >= 0, text
    assert float(row["Server Compute Infer"]) > 0, text


def test_two_inputs(ours: Running, perf_analyzer: Path) -> None:
    assert "throughput" in perf(perf_analyzer, ours, "pair", "-i", "http")


def test_free_shape(ours: Running, perf_analyzer: Path) -> None:
    assert "throughput" in perf(perf_analyzer, ours, "any", "-i", "http", "--shape", "INPUT0:16")


def test_text(ours: Running, perf_analyzer: Path) -> None:
    free = ("--shape", "INPUT0:3", "--string-length", "5")
    assert "throughput" in perf(perf_analyzer, ours, "text", "-i", "grpc", *free)


def test_collect_metrics(ours: Running, perf_analyzer: Path) -> None:
    url = f"127.0.0.1:{ours.metrics_port}/metrics"
    more = ("--collect-metrics", "--metrics-url", url, "--metrics-interval", "100")
    text = perf(perf_analyzer, ours, "ident", "-i", "http", *more, "--verbose-csv")
    assert "Server Prometheus Metrics" in text and "Unable to connect" not in text, text


def test_unknown_model(ours: Running, perf_analyzer: Path) -> None:
    env = {**os.environ, "LD_LIBRARY_PATH": str(perf_analyzer.parent / "lib")}
    command = [str(perf_analyzer), "-m", "nope", "-u", ours.http, "-i", "http"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, env=env, check=False)
    assert done.returncode != 0 and "nope" in done.stdout + done.stderr
