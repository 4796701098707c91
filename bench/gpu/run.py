"""All that only a GPU can tell, in one command: `scripts/gpu-check`.

Parts run one after the other, each in a process of its own with a time limit, and write what they
found to OUT/PART.json. `--resume` leaves out those that have finished. `--dry-run` walks the same
code without a GPU, on the fake driver of the tests: its figures mean nothing, but what it cannot
walk cannot run.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from bench.gpu.child import ENVIRONMENT, Children, Errand
from bench.gpu.parts import MOST_S, PARTS, START_S, Part, chosen, granted_s
from bench.gpu.rows import Row, Verdict, as_json, row_of
from bench.gpu.show import Screen

BACKEND: Final = "bench.gpu.real:open_backend"
FAKE: Final = "bench.gpu.fake:open_backend"
#: A dry run is for any machine, however slow or busy.
_DRY_PATIENCE: Final = 4


@dataclass(frozen=True, slots=True)
class Found:
    """A part's rows, how long it took, and whether it came to its end."""

    part: Part
    rows: Sequence[Row]
    seconds: float
    finished: bool


def kept(out: Path, part: Part, dry: bool) -> Found | None:
    """What an earlier run found, if it finished the part."""
    try:
        plain = json.loads((out / f"{part.name}.json").read_text())
        rows = [row_of(one) for one in plain["rows"]]
    except (OSError, ValueError, KeyError):
        return None
    if plain.get("dry") != dry or not plain.get("finished"):
        return None
    return Found(part, rows, float(plain["seconds"]), True)


def run_part(
    children: Children, part: Part, seconds: float, out: Path, dry: bool, screen: Screen
) -> Found:
    """Run one part for so many seconds at most, show its rows as they come, and keep them."""
    errand = Errand(
        part.entry,
        FAKE if dry else BACKEND,
        dry,
        out,
        out / f"{part.name}.log",
        seconds * (_DRY_PATIENCE if dry else 1),
        {**ENVIRONMENT, **part.environment},
    )
    began_s, began = time.monotonic(), datetime.now(UTC)
    rows: list[Row] = []
    for row in children.rows(errand):
        rows.append(row)
        screen.row(row)
    took_s = round(time.monotonic() - began_s, 2)
    broken = any(r.verdict is Verdict.FAILED and r.what.startswith("the part") for r in rows)
    found = Found(part, rows, took_s, finished=not broken)
    (out / f"{part.name}.json").write_text(as_json(_plain(found, dry, began)))
    return found


def _plain(found: Found, dry: bool, began: datetime) -> dict[str, Any]:
    return {
        "part": found.part.name,
        "tells": found.part.tells,
        "dry": dry,
        "date": began.isoformat(timespec="seconds"),
        "command": " ".join(sys.argv),
        "environment": {**ENVIRONMENT, **found.part.environment},
        "seconds": found.seconds,
        "finished": found.finished,
        "rows": [row.plain() for row in found.rows],
    }


def run(
    parts: Sequence[Part],
    out: Path,
    dry: bool,
    resume: bool,
    screen: Screen,
    most_s: float = MOST_S,
) -> list[Found]:
    """The parts in order; those that finished before are read instead, if that is asked for.

    What a part leaves of its seconds is there for those that follow, ``most_s`` in all.
    """
    out.mkdir(parents=True, exist_ok=True)
    end_s = time.monotonic() + most_s - START_S
    children = Children()
    results: list[Found] = []
    for place, part in enumerate(parts):
        seconds = granted_s(part, parts[place + 1 :], end_s - time.monotonic())
        screen.part(part, seconds)
        before = kept(out, part, dry) if resume else None
        if before is not None:
            for row in before.rows:
                screen.row(row)
        found = before or run_part(children, part, seconds, out, dry, screen)
        screen.ended(found.seconds, resumed=before is not None)
        results.append(found)
    (out / "summary.json").write_text(as_json(_summary(results, dry)))
    return results


def _summary(results: Sequence[Found], dry: bool) -> dict[str, Any]:
    return {
        "dry": dry,
        "seconds": round(sum(one.seconds for one in results), 2),
        "parts": {
            one.part.name: {
                "finished": one.finished,
                "seconds": one.seconds,
                "verdicts": {v.value: _count(one.rows, v) for v in Verdict if _count(one.rows, v)},
            }
            for one in results
        },
    }


def _count(rows: Sequence[Row], verdict: Verdict) -> int:
    return sum(row.verdict is verdict for row in rows)


def _arguments(arguments: Sequence[str] | None) -> argparse.Namespace:
    about = "\n".join(f"  {one.name:<13}{one.seconds:4.0f} s  {one.tells}" for one in PARTS)
    parser = argparse.ArgumentParser(
        prog="scripts/gpu-check",
        description=__doc__,
        epilog=f"parts, and what each can count on ({MOST_S:g} s in all at most):\n{about}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--only", nargs="+", default=[], metavar="PART", help="parts or groups")
    parser.add_argument("--resume", action="store_true", help="leave out what has finished")
    parser.add_argument("--dry-run", action="store_true", help="walk every part without a GPU")
    parser.add_argument(
        "--patience", type=float, default=1.0, metavar="N", help="give every part N times as long"
    )
    parser.add_argument("--out", type=Path, default=Path("build/gpu-check"), metavar="FOLDER")
    return parser.parse_args(arguments)


def main(arguments: Sequence[str] | None = None) -> int:
    """The exit status: 1 if something did not run to its end, 2 if a part is unknown."""
    asked = _arguments(arguments)
    try:
        found = chosen(asked.only)
    except KeyError as error:
        print(error.args[0], file=sys.stderr)
        return 2
    parts = [replace(part, seconds=asked.patience * part.seconds) for part in found]
    screen = Screen(asked.dry_run)
    most_s = asked.patience * MOST_S
    results = run(parts, asked.out, asked.dry_run, asked.resume, screen, most_s)
    screen.summary([(one.part, one.rows, one.seconds) for one in results], asked.out)
    return 1 if any(row.broken for one in results for row in one.rows) else 0


if __name__ == "__main__":
    sys.exit(main())
