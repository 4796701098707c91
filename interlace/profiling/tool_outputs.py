"""Profiles from what perf_analyzer and trtexec print: one model and batch a file, the whole GPU.

The file's name is the model's, with ``-b8`` behind it where the output does not say the batch.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from interlace.core.profile import LatencyPoint, Profile
from interlace.profiling.profile_csv import ProfileTable, ProfileTableError

#: Files of such outputs; of CSV files the first line tells.
SUFFIXES: Final = (".txt", ".log")
#: The digest of such profiles: files of a model are parts of one.
TOOL: Final = "tool"
_PERF_CSV: Final = "Concurrency,Inferences/Second"
_NAME: Final = re.compile(r"(?P<model>.+?)(?:[-_.]b(?:s|atch)?[-_]?(?P<batch>\d+))?$")
_PERF_BLOCK: Final = re.compile(r"Request concurrency: (\d+)\n(.*?)(?=\nRequest |\Z)", re.S)
_COMPUTE: Final = re.compile(r"compute(?: \w+)? (\d+) usec")
_US_PER_MS: Final = 1000.0


def read_tool_output(path: Path, gpu_kind: str) -> ProfileTable | None:
    """The profile in such an output, taken for one of ``gpu_kind``; ``None`` of another file.

    Of perf_analyzer the time of the server's computing counts, with the client's spread, at one
    request at a time; of trtexec its latency: copies to the GPU and back, and the computing.

    Raises:
        ProfileTableError: it lacks what is needed; what, and the option that has it printed.
        OSError: the file cannot be read.
    """
    text = path.read_text(encoding="utf-8", errors="replace")
    name = _NAME.match(path.stem)
    assert name is not None  # a stem has a character
    batch = int(name["batch"] or 1)
    if text.startswith(_PERF_CSV):
        point = _of_perf_csv(path, text)
    elif "*** Measurement Settings ***" in text:
        said = re.search(r"Batch size: (\d+)", text)
        batch, point = int(said[1]) if said else batch, _of_perf_text(path, text)
    elif "trtexec" in text:
        batch, point = _trtexec_batch(text) or batch, _of_trtexec(path, text)
    else:
        return None
    if batch < 1:
        raise ProfileTableError(f"{path}: a batch of {batch}; expected at least 1")
    made = Profile(name["model"], TOOL, gpu_kind, 0, 0, {(batch, 100): point})
    return ProfileTable({made.model: made}, frozenset())


def _of_perf_csv(path: Path, text: str) -> LatencyPoint:
    for row in csv.DictReader(text.splitlines()):
        if row["Concurrency"] == "1":
            compute = [row.get(f"Server Compute {part}") for part in ("Input", "Infer", "Output")]
            client = {int(n): row.get(f"p{n} latency") for n in (50, 95, 99)}
            try:
                us = sum(float(part) for part in compute if part)
                return _point(path, us, {n: float(one) for n, one in client.items() if one})
            except ValueError:
                break
    raise _alone(path)


def _of_perf_text(path: Path, text: str) -> LatencyPoint:
    for concurrency, block in _PERF_BLOCK.findall(text):
        if concurrency == "1":
            client = {
                int(n): float(us) for n, us in re.findall(r"p(\d+) latency: (\d+) usec", block)
            }
            return _point(path, sum(map(float, _COMPUTE.findall(block))), client)
    raise _alone(path)


def _alone(path: Path) -> ProfileTableError:
    return ProfileTableError(
        f"{path}: no measurement of one request at a time: give perf_analyzer --concurrency-range 1"
    )


def _point(path: Path, compute_us: float, client_us: Mapping[int, float]) -> LatencyPoint:
    median_us = compute_us or client_us.get(50, 0.0)
    if median_us <= 0:
        raise ProfileTableError(f"{path}: it says neither the server's compute time nor a p50")
    middle_us = client_us.get(50, max(client_us.values(), default=0.0))
    tails_us = (max(0.0, client_us.get(n, middle_us) - middle_us) for n in (95, 99))
    p95_ms, p99_ms = ((median_us + tail_us) / _US_PER_MS for tail_us in tails_us)
    return LatencyPoint(median_us / _US_PER_MS, p95_ms, max(p95_ms, p99_ms), 1)


def _of_trtexec(path: Path, text: str) -> LatencyPoint:
    line = next((one for one in text.splitlines() if re.search(r"\bLatency: min", one)), "")
    median = re.search(r"median = ([\d.]+) ms", line)
    if median is None:
        raise ProfileTableError(f"{path}: no line 'Latency: min = ..., median = ...' of trtexec")
    said = {int(n): float(ms) for n, ms in re.findall(r"percentile\((\d+)%\) = ([\d.]+) ms", line)}
    median_ms = float(median[1])
    p95_ms = max(median_ms, said.get(95, said.get(90, median_ms)))
    return LatencyPoint(median_ms, p95_ms, max(p95_ms, said.get(99, p95_ms)), 1)


def _trtexec_batch(text: str) -> int:
    """By the command line that it repeats: the first size of the first input; 0 if unsaid."""
    for option in (r"--shapes=", r"--optShapes="):
        found = re.search(option + r"['\"]?[^:\s]+?:(\d+)", text)
        if found:
            return int(found[1])
    found = re.search(r"--batch=(\d+)", text)
    return int(found[1]) if found else 0
