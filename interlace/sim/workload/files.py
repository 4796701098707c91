"""Traces from files: Azure Functions by minute and by invocation, CSV of one's own, event logs."""

from __future__ import annotations

import csv
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final, TypeVar

import numpy as np

from interlace.core.messages import RequestArrived
from interlace.runtime.log.codec import ANY_MAGIC, LogError, glance, open_log
from interlace.sim.arrivals import Times

_INVOCATION = ("func", "end_timestamp", "duration")
_OWN = ("time_ms", "model")
#: Letters of a count, and a size of times, beyond all that are meant seriously.
_FIGURES: Final = 12
_MOST: Final = 1e15
#: Letters of a value that an error shows.
_LONGEST: Final = 60

_T = TypeVar("_T")


class TraceError(ValueError):
    """A file is no trace; names the file, line and column, the text there and what is expected."""


def azure_counts(path: Path) -> Mapping[str, tuple[int, ...]]:
    """Azure Functions 2019: a row a function, a column a minute; counts by function name.

    Columns whose names are whole numbers are minutes, in their order; HashFunction (or the first
    column) names the function. Rows of one name are added up.

    Raises:
        TraceError: the file has no such columns, or a count is no whole number of 0 or more.
        OSError: it cannot be read.
    """
    found: dict[str, tuple[int, ...]] = {}
    minutes: list[str] = []
    key = ""
    for line, row in _rows(path):
        if not minutes:
            minutes = sorted(filter(_whole, row), key=int)
            key = "HashFunction" if "HashFunction" in row else next(iter(row))
        if not minutes:
            raise TraceError(f"{path}: line 1: expected columns 1, 2, ... with counts by minute")
        counts = tuple(_count(path, line, minute, row[minute]) for minute in minutes)
        name = _name(path, line, key, row[key])
        before = found.get(name, (0,) * len(minutes))
        found[name] = tuple(a + b for a, b in zip(before, counts, strict=True))
    return _some(path, found)


def azure_invocations(path: Path) -> Mapping[str, Times]:
    """Azure Functions 2021: a row an invocation with func, end_timestamp and duration, in s.

    An invocation arrives when it begins: its end less its duration. Times are ms from the first.

    Raises:
        TraceError: a column is missing, or a value is no number.
        OSError: the file cannot be read.
    """
    starts: dict[str, list[float]] = {}
    for line, row in _rows(path, _INVOCATION):
        end_s = _number(path, line, "end_timestamp", row["end_timestamp"])
        start_s = end_s - _number(path, line, "duration", row["duration"])
        starts.setdefault(_name(path, line, "func", row["func"]), []).append(start_s * 1000.0)
    first_ms = min((min(times) for times in starts.values()), default=0.0)
    return _some(path, {name: np.sort(np.array(t)) - first_ms for name, t in starts.items()})


def own_times(path: Path) -> Mapping[str, Times]:
    """Times by model in ms: of a CSV with the columns time_ms and model, or of an event log.

    Those of a log count from its first arrival; its models are named as they were deployed.

    Raises:
        TraceError: it is neither, or a time is no number of 0 or more.
        OSError: the file cannot be read.
    """
    with path.open("rb") as file:
        if file.read(len(ANY_MAGIC)) == ANY_MAGIC:
            return _log_times(path)
    times: dict[str, list[float]] = {}
    for line, row in _rows(path, _OWN):
        at_ms = _number(path, line, "time_ms", row["time_ms"])
        if at_ms < 0:
            raise TraceError(f"{path}: line {line}: time_ms is {at_ms:g}; expected 0 or more")
        times.setdefault(_name(path, line, "model", row["model"]), []).append(at_ms)
    return _some(path, {model: np.sort(np.array(found)) for model, found in times.items()})


def _log_times(path: Path) -> Mapping[str, Times]:
    times: dict[str, list[float]] = {}
    try:
        for _, event in map(glance, open_log(path).entries()):
            if isinstance(event, RequestArrived):
                request = event.request
                times.setdefault(request.model, []).append(request.arrived_ms)
    except (LogError, ValueError) as error:
        raise TraceError(str(error)) from None
    first_ms = min((found[0] for found in times.values()), default=0.0)
    return _some(path, {model: np.array(found) - first_ms for model, found in times.items()})


def _rows(path: Path, wanted: tuple[str, ...] = ()) -> Iterator[tuple[int, dict[str, str]]]:
    """Line numbers and rows by column; all ``wanted`` columns are there, each once."""
    with path.open(newline="", encoding="utf-8-sig") as file:
        rows = csv.reader(file)
        columns: list[str] = []
        try:
            for values in filter(None, rows):
                if columns and len(values) != len(columns):
                    count = f"{len(values)} values; expected {len(columns)}, one for each column"
                    raise TraceError(f"{path}: line {rows.line_num}: {count}")
                if columns:
                    yield rows.line_num, dict(zip(columns, values, strict=True))
                else:
                    columns = _columns(path, rows.line_num, values, wanted)
        except (csv.Error, UnicodeDecodeError) as error:
            raise TraceError(
                f"{path}: line {rows.line_num + 1}: no CSV in UTF-8: {error}"
            ) from None
    if not columns:
        raise TraceError(f"{path}: line 1: no columns; expected {', '.join(wanted) or '1, 2, ...'}")


def _columns(path: Path, line: int, found: list[str], wanted: tuple[str, ...]) -> list[str]:
    """The header's names."""
    if missing := [name for name in wanted if name not in found]:
        raise TraceError(
            f"{path}: line {line}: no column {missing[0]}; expected {', '.join(wanted)}"
        )
    if twice := [name for name in found if name and found.count(name) > 1]:
        raise TraceError(f"{path}: line {line}: column {twice[0]!r} is twice; expected it once")
    return found


def _number(path: Path, line: int, column: str, text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = float("nan")
    if not abs(value) <= _MOST:
        raise TraceError(f"{path}: line {line}: {column} is {_shown(text)}; expected a number")
    return value


def _count(path: Path, line: int, column: str, text: str) -> int:
    if not _whole(text):
        raise TraceError(
            f"{path}: line {line}: minute {column} is {_shown(text)}; expected a whole number"
        )
    return int(text)


def _whole(text: str) -> bool:
    """``str.isdigit`` alone takes figures that ``int`` does not read, such as those of powers."""
    return text.isascii() and text.strip().isdigit() and len(text) <= _FIGURES


def _name(path: Path, line: int, column: str, text: str) -> str:
    if not text:
        raise TraceError(f"{path}: line {line}: {column} is empty; expected a name")
    return text


def _shown(text: str) -> str:
    return repr(text) if len(text) <= _LONGEST else f"{text[:_LONGEST]!r}..."


def _some(path: Path, found: Mapping[str, _T]) -> Mapping[str, _T]:
    if not found:
        raise TraceError(f"{path}: nothing arrives in it")
    return found
