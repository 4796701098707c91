"""Co-runs kept as a JSON file: one for each kind of device."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Final
from urllib.parse import quote

import msgspec

from interlace.core.tables import TableError, read_json, read_table
from interlace.core.version import __version__
from interlace.perf.interference import CoRunner
from interlace.profiling.corun import CoRun

SCHEMA: Final = 1
#: Above every batch and latency that is meant seriously.
_MOST: Final = 10**9

_Ms = Annotated[float, msgspec.Meta(gt=0, le=_MOST)]


class RunnerRow(msgspec.Struct, frozen=True):
    """A ``CoRunner``."""

    model: str
    batch: Annotated[int, msgspec.Meta(ge=1, le=_MOST)]
    share_pct: Annotated[int, msgspec.Meta(ge=1, le=100)]


class CoRunRow(msgspec.Struct, frozen=True):
    """Who ran, and what its executions say."""

    runner: RunnerRow
    neighbours: list[RunnerRow]
    alone_ms: _Ms
    beside_ms: _Ms
    overlap: Annotated[float, msgspec.Meta(ge=0, le=1)]
    executions: Annotated[int, msgspec.Meta(ge=0)]


class CoRunFile(msgspec.Struct, frozen=True):
    """Everything measured side by side on one kind; ``digests`` are of the models' files."""

    schema: int
    kind: str
    date: str
    interlace: str
    digests: dict[str, str]
    seen: list[CoRunRow]


def corun_path(folder: Path, kind: str) -> Path:
    """Beside the profiles of that kind."""
    return folder / quote(kind, safe="") / "coruns.json"


def save_coruns(path: Path, kind: str, digests: Mapping[str, str], seen: Sequence[CoRun]) -> None:
    """Write what was seen in place of what was there.

    Raises:
        OSError: it cannot be written.
    """
    date = datetime.now(UTC).isoformat(timespec="seconds")
    made = CoRunFile(SCHEMA, kind, date, __version__, dict(digests), [_among(one) for one in seen])
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(msgspec.json.format(msgspec.json.encode(made)) + b"\n")


def read_coruns(path: Path, digests: Mapping[str, str] | None = None) -> list[CoRun]:
    """What was measured of models that still have these ``digests``; of all models without them.

    Raises:
        TableError: it is not such a file; the key, what is there, what is expected.
        OSError: it cannot be read.
    """
    found = read_table(read_json(path.read_bytes(), "a file of co-runs"), CoRunFile)
    if found.schema != SCHEMA:
        raise TableError("schema", str(found.schema), str(SCHEMA))
    seen = [_corun(one) for one in found.seen]
    if digests is None:
        return seen
    same = {name for name, digest in digests.items() if found.digests.get(name) == digest}
    return [one for one in seen if same >= {r.model for r in (one.runner, *one.neighbours)}]


def _among(one: CoRun) -> CoRunRow:
    return CoRunRow(
        RunnerRow(*one.runner),
        [RunnerRow(*other) for other in one.neighbours],
        round(one.alone_ms, 4),
        round(one.beside_ms, 4),
        round(one.overlap, 4),
        one.executions,
    )


def _corun(one: CoRunRow) -> CoRun:
    return CoRun(
        _runner(one.runner),
        tuple(map(_runner, one.neighbours)),
        one.alone_ms,
        one.beside_ms,
        one.overlap,
        one.executions,
    )


def _runner(one: RunnerRow) -> CoRunner:
    return CoRunner(one.model, one.batch, one.share_pct)
