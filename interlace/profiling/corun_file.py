"""Co-runs kept as a JSON file: one for each kind of device."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Final
from urllib.parse import quote

import msgspec

from interlace.core.version import __version__
from interlace.perf.interference import CoRunner
from interlace.profiling.corun import CoRun

SCHEMA: Final = 1


class RunnerRow(msgspec.Struct, frozen=True):
    """A ``CoRunner``."""

    model: str
    batch: int
    share_pct: int


class CoRunRow(msgspec.Struct, frozen=True):
    """Who ran, and what its executions say."""

    runner: RunnerRow
    neighbours: list[RunnerRow]
    alone_ms: float
    beside_ms: float
    overlap: float
    executions: int


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
        msgspec.MsgspecError: it is not such a file.
        OSError: it cannot be read.
    """
    found = msgspec.json.decode(path.read_bytes(), type=CoRunFile)
    if found.schema != SCHEMA:
        raise msgspec.ValidationError(f"written in form {found.schema}, this is form {SCHEMA}")
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
