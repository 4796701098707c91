"""What a run has found, on disk as it comes: rows one by one, a file a part, a summary.

Whatever ends a run, each row that came is in OUT/rows.jsonl, and what came of each part in
OUT/PART.json, which are never half written.

All findings of a run are also put in one file, to be carried away, and to go on from elsewhere.
"""

import io
import json
import sys
import tarfile
import time
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import msgspec

from bench.gpu.parts import Part
from bench.gpu.rows import Row, Verdict, as_json, as_line
from bench.harness.conditions import conditions

ROWS: Final = "rows.jsonl"
SUMMARY: Final = "summary.json"
#: The name in ``rows.jsonl`` of what belongs to no part.
RUN: Final = "run"


@dataclass(slots=True)
class Found:
    """A part's rows, how long it took, and whether it came to its end."""

    part: Part
    rows: list[Row] = field(default_factory=list)
    seconds: float = 0.0
    finished: bool = False
    resumed: bool = False


class Findings:
    """The out folder of one run. ``cut`` says why the run ended early, if it did; ``missing`` are
    files that had no room in the bundle."""

    def __init__(self, out: Path, dry: bool) -> None:
        """Go on in the folder; what earlier runs left there stays."""
        out.mkdir(parents=True, exist_ok=True)
        self.out = out
        self.dry = dry
        self.cut = ""
        self.missing: list[str] = []
        self.results: list[Found] = []
        self.left_out: list[Part] = []
        self.machine: list[Row] = []
        self._conditions = conditions()
        self._began, self._began_s = datetime.now(UTC), time.monotonic()
        self._open: tuple[Found, datetime, float, Mapping[str, str]] | None = None
        self._lines = (out / ROWS).open("a", encoding="utf-8")
        self._line({"run": self._began.isoformat(timespec="seconds"), "command": _command()})

    def kept(self, part: Part) -> Found | None:
        """What an earlier run found, if it finished the part."""
        try:
            plain = json.loads((self.out / f"{part.name}.json").read_text())
            rows = msgspec.convert(plain["rows"], list[Row])
            if plain["dry"] != self.dry or not plain["finished"]:
                return None
            return Found(part, rows, float(plain["seconds"]), finished=True, resumed=True)
        except (OSError, ValueError, KeyError, TypeError, msgspec.MsgspecError):
            return None

    def resume(self, found: Found) -> None:
        """A part of an earlier run counts as this one's."""
        self.results.append(found)

    def leave_out(self, part: Part) -> None:
        """A part that no time is left for."""
        self.left_out.append(part)

    def begin(self, part: Part, environment: Mapping[str, str]) -> None:
        """Rows are this part's from now on."""
        self._open = (Found(part), datetime.now(UTC), time.monotonic(), environment)

    def row(self, row: Row) -> None:
        """One more row, written before anything else happens."""
        if self._open is None:
            self.machine.append(row)
        else:
            self._open[0].rows.append(row)
        part = RUN if self._open is None else self._open[0].part.name
        at_s = round(time.monotonic() - self._began_s, 3)
        self._line({"part": part, "at_s": at_s, **row.plain()})

    def end(self, finished: bool) -> Found:
        """The part has ended, or has been cut off; its file is written."""
        assert self._open is not None, "no part has begun"
        found, began, began_s, environment = self._open
        found.seconds = round(time.monotonic() - began_s, 2)
        found.finished = finished
        self._write(f"{found.part.name}.json", _plain(found, self.dry, began, environment))
        self.results.append(found)
        self._open = None
        return found

    def close(self) -> None:
        """End the part that is open, if one is, and sum up."""
        if self._open is not None:
            self.end(finished=False)
        self.sum_up()
        self._lines.close()

    def sum_up(self) -> None:
        """What the run has come to so far."""
        self._write(SUMMARY, self._summary())

    def _line(self, value: Mapping[str, Any]) -> None:
        self._lines.write(as_line(value))
        self._lines.flush()

    def _write(self, name: str, value: Mapping[str, Any]) -> None:
        # Read by later parts and by later runs: never half of it.
        made = self.out / f".{name}.part"
        made.write_text(as_json(value), encoding="utf-8")
        made.replace(self.out / name)

    def _summary(self) -> dict[str, Any]:
        return {
            "dry": self.dry,
            **self._conditions,
            "seconds": round(time.monotonic() - self._began_s, 2),
            "cut": self.cut,
            "left_out": [part.name for part in self.left_out],
            "machine": [row.plain() for row in self.machine],
            "parts": {one.part.name: _counts(one) for one in self.results},
        }


def _plain(
    found: Found, dry: bool, began: datetime, environment: Mapping[str, str]
) -> dict[str, Any]:
    return {
        "part": found.part.name,
        "tells": found.part.tells,
        "dry": dry,
        "date": began.isoformat(timespec="seconds"),
        "command": _command(),
        "environment": dict(environment),
        "seconds": found.seconds,
        "finished": found.finished,
        "rows": [row.plain() for row in found.rows],
    }


def _counts(found: Found) -> dict[str, Any]:
    counts = {verdict.value: count(found.rows, verdict) for verdict in Verdict}
    return {
        "finished": found.finished,
        "seconds": found.seconds,
        "verdicts": {name: number for name, number in counts.items() if number},
    }


def count(rows: Sequence[Row], verdict: Verdict) -> int:
    """How many rows ended so."""
    return sum(row.verdict is verdict for row in rows)


def _command() -> str:
    return " ".join(sys.argv)


NAME: Final = "bundle.tar.gz"
#: What may come back from a borrowed machine.
MOST_BYTES: Final = 16 << 20
#: What a file costs in the archive beside its own bytes, compressed; and what the archive's end is.
_HEAD_BYTES: Final = 1024
#: A log may be anything; its end says where a part stood.
_LOG_BYTES: Final = 128 << 10
_FIRST: Final = (SUMMARY, ROWS)
_FINDINGS: Final = (".json", ".jsonl", ".csv")
_LEFT_OUT: Final = "left-out.txt"


def bundle(out: Path, file: Path, most_bytes: int = MOST_BYTES) -> list[str]:
    """Put the findings in ``out`` into ``file``, the most telling first, and never too many.

    Caches and what programs left are not findings. Returns the names of what had no room, which
    are in the file as well.

    Raises:
        OSError: the file cannot be written.
    """
    missing: list[str] = []
    left_bytes = most_bytes - _HEAD_BYTES
    file.parent.mkdir(parents=True, exist_ok=True)
    made = file.with_name(f".{file.name}.part")
    with tarfile.open(made, "w:gz") as archive:
        for path in _ordered(out):
            name = str(path.relative_to(out))
            data = _read(path)
            need_bytes = len(zlib.compress(data)) + _HEAD_BYTES
            if need_bytes > left_bytes:
                missing.append(name)
                continue
            left_bytes -= need_bytes
            _add(archive, name, data)
        if missing:
            _add(archive, _LEFT_OUT, "\n".join(missing)[:_HEAD_BYTES].encode())
    made.replace(file)
    return missing


def unpack(file: Path, out: Path) -> None:
    """Lay the findings of a bundle into ``out``, over those of the same names.

    Raises:
        OSError: there is no such file, or it cannot be read.
        tarfile.TarError: it is no bundle, or was not made by ``bundle``.
    """
    out.mkdir(parents=True, exist_ok=True)
    with tarfile.open(file, "r:gz") as archive:
        archive.extractall(out, filter="data")


def _ordered(out: Path) -> Iterator[Path]:
    """Summary and rows, each part's file, what parts kept for others, logs."""
    found = [path for path in sorted(out.rglob("*")) if path.is_file() and not _hidden(path, out)]
    rank = {name: place for place, name in enumerate(_FIRST)}
    findings = [path for path in found if path.suffix in _FINDINGS]
    logs = [path for path in found if path.suffix == ".log"]
    yield from sorted(
        findings, key=lambda path: (rank.get(path.name, len(rank)), len(path.parts), path)
    )
    yield from logs


def _hidden(path: Path, out: Path) -> bool:
    return any(part.startswith(".") for part in path.relative_to(out).parts)


def _read(path: Path) -> bytes:
    data = path.read_bytes()
    return data[-_LOG_BYTES:] if path.suffix == ".log" else data


def _add(archive: tarfile.TarFile, name: str, data: bytes) -> None:
    entry = tarfile.TarInfo(name)
    entry.size = len(data)
    archive.addfile(entry, io.BytesIO(data))
