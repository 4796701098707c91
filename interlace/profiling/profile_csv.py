"""Profiles from tables of latencies and from the output of other tools."""

from __future__ import annotations

import csv
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from io import StringIO
from math import isfinite
from pathlib import Path
from typing import Final, NamedTuple

from msgspec import MsgspecError

from interlace.core.profile import LatencyPoint, Profile
from interlace.profiling.profile_file import profile_of, read_record

_REQUIRED: Final = ("model", "share_pct", "batch", "latency_ms")
_OPTIONAL: Final = (
    "p95_ms",
    "p99_ms",
    "samples",
    "weights_mb",
    "activation_mb",
    "load_ms",
    "gpu_kind",
    "l2_util",
    "dram_util",
)
#: Columns of older tables that nothing reads any more.
_PASSED_OVER: Final = ("power_w", "idle_w")
_MB: Final = 10**6


class ProfileTableError(ValueError):
    """A table that cannot be read: file, line, column, what is wrong and what is expected."""


class ProfileTable(NamedTuple):
    """Profiles by model name, and every kind of GPU that rows name; none without that column."""

    profiles: dict[str, Profile]
    kinds: frozenset[str]


def read_profiles(path: Path, gpu_kind: str) -> ProfileTable:
    """Profiles from ``path`` on ``gpu_kind``; rows that name another kind are passed over.

    Columns: model, share_pct, batch, latency_ms (median); and if known p95_ms and p99_ms (else
    as the median), samples, weights_mb, activation_mb, load_ms, gpu_kind, l2_util and dram_util
    (0..1). Empty lines and lines that begin with # are passed over.

    Raises:
        ProfileTableError: a column is missing or unknown, or a value is not what it should be;
            file, line and character are named.
        OSError: the file cannot be read.
    """
    gathered: dict[str, _ModelRows] = {}
    kinds: set[str] = set()
    for row in _rows(path):
        kind = row.text("gpu_kind")
        if kind:
            kinds.add(kind)
        if kind in ("", gpu_kind):
            _take(row, gathered)
    if not gathered and not kinds:
        raise ProfileTableError(f"{path}:1:1: no rows; expected one for each batch and share")
    found = {name: rows.profile(name, gpu_kind) for name, rows in gathered.items()}
    return ProfileTable(found, frozenset(kinds))


def profiles_text(profiles: Mapping[str, Profile]) -> str:
    """Profiles by name as such a table, which ``read_profiles`` reads."""
    out = StringIO()
    table = csv.writer(out, lineterminator="\n")
    table.writerow((*_REQUIRED, *_OPTIONAL))
    for name, one in profiles.items():
        sizes = (one.weights_bytes / _MB, one.activation_bytes / _MB, one.load_ms)
        for (batch, share_pct), point in sorted(one.points.items()):
            pressure = one.pressure.get((batch, share_pct), ("", ""))
            times_ms = (point.median_ms, point.p95_ms, point.p99_ms)
            figures = (name, share_pct, batch, *times_ms, max(1, point.samples), *sizes)
            table.writerow((*figures, one.gpu_kind, *pressure))
    return out.getvalue()


def stored_profile(path: Path, gpu_kind: str) -> ProfileTable:
    """The profile in a file that ``interlace profile`` keeps, layers and all, if it is of the kind.

    Raises:
        ProfileTableError: it is no such file.
        OSError: the file cannot be read.
    """
    try:
        record = read_record(path.read_bytes())
    except MsgspecError as error:
        raise ProfileTableError(f"{path}: not a profile: {error}") from None
    name, kind = record.model.name, record.device.kind
    found = {name: profile_of(record, name)} if kind == gpu_kind else {}
    return ProfileTable(found, frozenset({kind}))


@dataclass(slots=True)
class _ModelRows:
    """One model's rows so far."""

    points: dict[tuple[int, int], LatencyPoint] = field(default_factory=dict)
    pressure: dict[tuple[int, int], tuple[float, float]] = field(default_factory=dict)
    weights_bytes: int = 0
    activation_bytes: int = 0
    load_ms: float = 0.0

    def profile(self, name: str, gpu_kind: str) -> Profile:
        return Profile(
            name,
            "csv",
            gpu_kind,
            self.weights_bytes,
            self.activation_bytes,
            self.points,
            load_ms=self.load_ms,
            pressure=self.pressure,
        )


@dataclass(frozen=True, slots=True)
class _Row:
    """One line: its values by column, and where each begins."""

    path: Path
    line: int
    values: Mapping[str, str]
    places: Mapping[str, int]

    def text(self, column: str) -> str:
        return self.values.get(column, "").strip()

    def number(self, column: str, default: float | None = None, most: float = 1e12) -> float:
        text = self.text(column)
        if not text and default is not None:
            return default
        try:
            value = float(text)
        except ValueError:
            value = float("nan")
        if not isfinite(value) or not 0 <= value <= most:
            raise self.error(column, f"a number from 0 to {most:g}")
        return value

    def above_zero(self, column: str, default: float | None = None) -> float:
        value = self.number(column, default)
        if value == 0:
            raise self.error(column, "a number above 0")
        return value

    def whole(self, column: str, most: int) -> int:
        value = self.number(column, most=most)
        if value < 1 or value != int(value):
            raise self.error(column, f"a whole number from 1 to {most}")
        return int(value)

    def error(self, column: str, expected: str) -> ProfileTableError:
        place = f"{self.path}:{self.line}:{self.places.get(column, 1)}"
        return ProfileTableError(f"{place}: {column} is '{self.text(column)}'; expected {expected}")


def _rows(path: Path) -> Iterator[_Row]:
    """The lines below the header.

    Raises:
        ProfileTableError: not text, no legal header, or another number of values than columns.
    """
    columns: list[str] = []
    try:
        lines = path.read_text(encoding="utf-8-sig").splitlines()
    except UnicodeDecodeError as error:
        raise ProfileTableError(f"{path}:1:1: not UTF-8 text: {error.reason}") from None
    for number, line in enumerate(lines, 1):
        if not line.strip() or line.startswith("#"):
            continue
        values = next(csv.reader([line]))
        if not columns:
            columns = [value.strip() for value in values]
            _check_columns(f"{path}:{number}", columns)
            continue
        if len(values) != len(columns):
            raise ProfileTableError(
                f"{path}:{number}:1: {len(values)} values for {len(columns)} columns"
            )
        places = dict(zip(columns, _places(line), strict=False))
        yield _Row(path, number, dict(zip(columns, values, strict=True)), places)


def _places(line: str) -> list[int]:
    """The character, from 1, at which each value begins."""
    places = [1]
    for value in line.split(","):
        places.append(places[-1] + len(value) + 1)
    return places[:-1]


def _check_columns(where: str, names: list[str]) -> None:
    missing = [name for name in _REQUIRED if name not in names]
    known = (*_REQUIRED, *_OPTIONAL, *_PASSED_OVER)
    wrong = [name for name in names if name not in known or names.count(name) > 1]
    if missing or wrong:
        what = f"no column {missing[0]}" if missing else f"column '{wrong[0]}' is unknown or twice"
        raise ProfileTableError(
            f"{where}:1: {what}; expected {', '.join(_REQUIRED)} and, if known, "
            f"{', '.join(_OPTIONAL)}"
        )


def _take(row: _Row, gathered: dict[str, _ModelRows]) -> None:
    name = row.text("model")
    if not name:
        raise row.error("model", "a name")
    rows = gathered.setdefault(name, _ModelRows())
    key = (row.whole("batch", 1_000_000), row.whole("share_pct", 100))
    if key in rows.points:
        raise row.error("batch", f"every batch once; {key[0]} at {key[1]} % of {name} is twice")
    median_ms = row.above_zero("latency_ms")
    p95_ms = row.above_zero("p95_ms", median_ms)
    samples = row.whole("samples", 10**9) if row.text("samples") else 1
    rows.points[key] = LatencyPoint(median_ms, p95_ms, row.above_zero("p99_ms", p95_ms), samples)
    if row.text("l2_util") or row.text("dram_util"):
        rows.pressure[key] = (row.number("l2_util", 0.0, 1), row.number("dram_util", 0.0, 1))
    rows.weights_bytes = int(row.number("weights_mb", rows.weights_bytes / _MB) * _MB)
    rows.activation_bytes = int(row.number("activation_mb", rows.activation_bytes / _MB) * _MB)
    rows.load_ms = row.number("load_ms", rows.load_ms)


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
