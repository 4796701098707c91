"""A run of gpu-check: its time, its parts in processes of their own, its results on disk.

Each row is in OUT/rows.jsonl before anything else happens, and after each part all results are
packed into one file, to be carried away and to go on from elsewhere.
"""

import io
import json
import os
import site
import tarfile
import time
import zlib
from collections.abc import Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any, Final, NamedTuple

import msgspec
import pytest

from bench.gpu.child import ENVIRONMENT, Children, Errand
from bench.gpu.parts import END_S, Part, granted_s
from bench.gpu.rows import Row, Verdict, as_line
from bench.harness.conditions import conditions

ROWS: Final = "rows.jsonl"
BUNDLE: Final = "bundle.tar.gz"
BACKEND: Final = "bench.gpu.devices:open_backend"
FAKE: Final = "tests.device.cuda.fake.capture:at_once"
#: A dry run is for any machine, however slow or busy.
_DRY_PATIENCE: Final = 4
#: A borrowed machine gives back files of at most this size.
_MOST_BYTES: Final = 16 << 20
#: An entry's own bytes in the archive, compressed; also those of the archive's end.
_HEAD_BYTES: Final = 1024
_LOG_BYTES: Final = 128 << 10  #: the end of a log shows where a part stood
_PACKED: Final = (".jsonl", ".json", ".csv", ".log")  #: in this order, while there is room


class Options(NamedTuple):
    """What a run is asked for; ``end_s`` is on ``time.monotonic``'s clock."""

    out: Path
    bundle: Path | None
    dry: bool
    models: tuple[str, ...]
    end_s: float


class Course:
    """Runs parts one after the other, and keeps what they find."""

    def __init__(self, options: Options, parts: Sequence[Part], resume: bool) -> None:
        """Continue in the folder; with ``resume``, finished parts are not run again."""
        self.out, self.dry = options.out, options.dry
        self.file = options.bundle or options.out / BUNDLE
        self.rows: list[Row] = []
        self._options = options
        (self.out / ".home").mkdir(parents=True, exist_ok=True)
        self._finished = finished(self.out, self.dry) if resume else {}
        self._waiting = [part for part in parts if part.name not in self._finished]
        self._lines = (self.out / ROWS).open("a", encoding="utf-8")
        self._write({"run": conditions(), "dry": self.dry})
        self._children = Children()
        print(f"torch was imported in {self._children.warm():.1f} s", flush=True)

    def run(self, part: Part) -> list[Row]:
        """Run a part for at most the time it is granted; return its rows.

        A part without enough time left is skipped.
        """
        rows = self._finished.get(part.name)
        if rows is not None:
            self.rows += rows
            print("\n", *rows, "finished before", sep="\n", flush=True)
            return rows
        self._waiting.remove(part)
        left_s = self._options.end_s - END_S - time.monotonic()
        seconds = granted_s(part, self._waiting, left_s)
        if not seconds:
            pytest.skip(f"{part.name} needs {part.seconds:g} s; --resume goes on with it")
        print(f"\n{part.name}: {part.tells} (at most {seconds:.0f} s)", flush=True)
        began_s = time.monotonic()
        rows = []
        with closing(self._children.rows(self._errand(part, seconds))) as found:
            for row in found:
                rows.append(row)
                self._write({"part": part.name, **row.plain()})
                print(row, flush=True)
        ended = not any(
            row.verdict is Verdict.FAILED and row.what.startswith("the part") for row in rows
        )
        took_s = round(time.monotonic() - began_s, 2)
        self._write({"part": part.name, "finished": ended, "seconds": took_s})
        bundle(self.out, self.file)  # a run that is killed loses no finished part
        self.rows += rows
        return rows

    def close(self) -> None:
        """End what still runs and pack the results."""
        self._children.end_all()
        self._lines.close()
        for name in bundle(self.out, self.file):
            print(f"no room in the bundle for {name}")

    def _errand(self, part: Part, seconds: float) -> Errand:
        environment = {
            **ENVIRONMENT,
            "TMPDIR": os.environ["TMPDIR"],
            # The own home may be read-only; later parts and runs find compiled kernels here.
            "HOME": str((self.out / ".home").resolve()),
            "PYTHONUSERBASE": site.getuserbase(),
            **part.environment,
        }
        return Errand(
            part.entry, FAKE if self.dry else BACKEND, self.dry, self.out,
            self.out / f"{part.name}.log", seconds * (_DRY_PATIENCE if self.dry else 1),
            environment, self._options.models,
        )  # fmt: skip

    def _write(self, value: Mapping[str, Any]) -> None:
        self._lines.write(as_line(value))
        self._lines.flush()


def finished(out: Path, dry: bool) -> dict[str, list[Row]]:
    """Return the rows of each part that a run of the same kind has finished."""
    found: dict[str, list[Row]] = {}
    rows: list[Row] = []
    same = False
    for line in (out / ROWS).read_text().splitlines() if (out / ROWS).exists() else ():
        try:
            plain = json.loads(line)
        except ValueError:  # the run was killed while it wrote
            continue
        if "run" in plain:
            rows, same = [], plain["dry"] == dry
        elif "finished" not in plain:
            rows.append(msgspec.convert(plain, Row))
        else:
            if plain["finished"] and same:
                found[plain["part"]] = rows
            rows = []
    return found


def bundle(out: Path, file: Path, most_bytes: int = _MOST_BYTES) -> list[str]:
    """Pack the results in ``out`` into ``file``; return the names of those without room.

    Raises:
        OSError: the file cannot be written.
    """
    missing: list[str] = []
    left_bytes = most_bytes - _HEAD_BYTES
    paths = [path for path in out.rglob("*") if path.suffix in _PACKED and path.is_file()]
    paths = [path for path in paths if "/." not in f"/{path.relative_to(out)}"]
    paths.sort(key=lambda path: (_PACKED.index(path.suffix), len(path.parts), path))
    file.parent.mkdir(parents=True, exist_ok=True)
    made = file.with_name(f".{file.name}.part")
    with tarfile.open(made, "w:gz") as archive:
        for path in paths:
            data = path.read_bytes()
            data = data[-_LOG_BYTES:] if path.suffix == ".log" else data
            entry = tarfile.TarInfo(str(path.relative_to(out)))
            entry.size = len(data)
            need_bytes = len(zlib.compress(data)) + _HEAD_BYTES
            if need_bytes > left_bytes:
                missing.append(entry.name)
                continue
            left_bytes -= need_bytes
            archive.addfile(entry, io.BytesIO(data))
    made.replace(file)
    return missing


def unpack(file: Path, out: Path) -> None:
    """Unpack a bundle into ``out``.

    Raises:
        pytest.UsageError: there is no such file, or it is not a bundle.
    """
    out.mkdir(parents=True, exist_ok=True)
    try:
        with tarfile.open(file, "r:gz") as archive:
            archive.extractall(out, filter="data")
    except (OSError, tarfile.TarError) as error:
        raise pytest.UsageError(f"--resume {file}: {error}") from error
