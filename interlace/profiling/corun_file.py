"""Co-runs kept as a JSON file: one for each kind of device."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Final
from urllib.parse import quote

import msgspec

from interlace.core.tables import TableError, read_json, read_table
from interlace.core.version import __version__
from interlace.profiling.corun import CoRun

SCHEMA: Final = 1


class CoRunFile(msgspec.Struct, frozen=True):
    """Everything measured side by side on one kind; ``digests`` are of the models' files."""

    schema: int
    kind: str
    date: str
    interlace: str
    digests: dict[str, str]
    seen: list[CoRun]


def corun_path(folder: Path, kind: str) -> Path:
    """Beside the profiles of that kind."""
    return folder / quote(kind, safe="") / "coruns.json"


def save_coruns(path: Path, kind: str, digests: Mapping[str, str], seen: Sequence[CoRun]) -> None:
    """Write what was seen in place of what was there.

    Raises:
        OSError: it cannot be written.
    """
    date = datetime.now(UTC).isoformat(timespec="seconds")
    made = CoRunFile(SCHEMA, kind, date, __version__, dict(digests), list(seen))
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
    if digests is None:
        return found.seen
    same = {name for name, digest in digests.items() if found.digests.get(name) == digest}
    return [one for one in found.seen if same >= {r.model for r in (one.runner, *one.neighbours)}]
