"""What executions side by side show: how much models slow each other, and the time they shared."""

from __future__ import annotations

import logging
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from itertools import combinations_with_replacement
from pathlib import Path
from typing import Annotated, Final, NamedTuple
from urllib.parse import quote

import msgspec

from interlace.core.hardware import Gpu
from interlace.core.model import Model
from interlace.core.profile import Profile, Profiles
from interlace.core.tables import TableError, read_json, read_table
from interlace.core.version import __version__
from interlace.perf.interference import CoRunner, slowed_profile
from interlace.perf.slowdown import LearnedInterference, Observation, fit_learned, from_profiles


class Interval(NamedTuple):
    """One execution, from command to completion."""

    began_ms: float
    ended_ms: float

    @property
    def took_ms(self) -> float:
        return self.ended_ms - self.began_ms


def merged(intervals: Sequence[Interval]) -> list[Interval]:
    """The same time as intervals that do not touch, in order."""
    found: list[Interval] = []
    for one in sorted(intervals):
        if found and one.began_ms <= found[-1].ended_ms:
            last = found.pop()
            found.append(Interval(last.began_ms, max(last.ended_ms, one.ended_ms)))
        elif one.took_ms > 0:
            found.append(one)
    return found


def common(intervals: Sequence[Interval], others: Sequence[Interval]) -> list[Interval]:
    """The time that lies in both."""
    cuts = [
        Interval(max(a.began_ms, b.began_ms), min(a.ended_ms, b.ended_ms))
        for a in merged(intervals)
        for b in merged(others)
        if a.began_ms < b.ended_ms and b.began_ms < a.ended_ms
    ]
    return merged(cuts)


def total_ms(intervals: Sequence[Interval]) -> float:
    return sum(one.took_ms for one in merged(intervals))


def overlap(own: Sequence[Interval], neighbours: Sequence[Sequence[Interval]]) -> float:
    """The part, 0..1, of one's own time during which every neighbour ran too.

    1.0 for nobody's neighbour; 0.0 if one did not run at all.
    """
    mine_ms = total_ms(own)
    if mine_ms <= 0:
        return 0.0
    shared = merged(own)
    for other in neighbours:
        shared = common(shared, other)
    return min(1.0, total_ms(shared) / mine_ms)


def together(runs: Sequence[Sequence[Interval]]) -> Interval | None:
    """From when all have begun to when the first has made its last end; ``None`` if never."""
    if not runs or not all(runs):
        return None
    began_ms = max(run[0].began_ms for run in runs)
    ended_ms = min(run[-1].ended_ms for run in runs)
    return Interval(began_ms, ended_ms) if began_ms < ended_ms else None


def inside(run: Sequence[Interval], window: Interval) -> list[Interval]:
    """The executions that lie in a window from begin to end."""
    return [
        one for one in run if window.began_ms <= one.began_ms and one.ended_ms <= window.ended_ms
    ]


class CoRunModel(NamedTuple):
    """A model that runs in one of the partitions, and its batch size in rows."""

    model: Model
    batch: int


#: Above every latency that is meant seriously.
_MOST_MS: Final = 10**9
_Ms = Annotated[float, msgspec.Meta(gt=0, le=_MOST_MS)]


class CoRun(msgspec.Struct, frozen=True):
    """One runner among others, measured in the same minute alone and beside them.

    ``overlap`` is the part of its time during which all neighbours ran too; latencies are medians.
    """

    runner: CoRunner
    neighbours: tuple[CoRunner, ...]
    alone_ms: _Ms
    beside_ms: _Ms
    overlap: Annotated[float, msgspec.Meta(ge=0, le=1)]
    executions: Annotated[int, msgspec.Meta(ge=0)]

    @property
    def slowdown(self) -> float:
        """As measured, with neighbours that were idle part of the time."""
        return self.beside_ms / self.alone_ms

    @property
    def full_slowdown(self) -> float:
        """What it would be with neighbours that never rest: the excess over the overlap."""
        if self.overlap <= 0:
            return 1.0
        return max(1.0, 1.0 + (self.slowdown - 1.0) / self.overlap)


def observations(seen: Sequence[CoRun]) -> list[Observation]:
    """For the predictors of ``perf.slowdown``; what was hardly measured is left out."""
    return [
        Observation(one.runner, one.neighbours, one.full_slowdown)
        for one in seen
        if one.overlap >= 0.5 and one.executions >= 5
    ]


def corun_share_pct(gpu: Gpu, sides: int) -> int | None:
    """Return the largest share that ``sides`` partitions can have at once; ``None`` without one."""
    fitting = [share for share in gpu.shares_pct if gpu.legal((share,) * sides)]
    return max(fitting, default=None)


def batch_for(profile: Profile, share_pct: int, slo_ms: float) -> int:
    """Return the largest measured batch that meets the SLO if run twice; else the smallest.

    Twice: a request waits for the batch that is running, then for its own.
    """
    known = {batch: point for (batch, share), point in profile.points.items() if share == share_pct}
    good = [batch for batch, point in known.items() if 2.0 * point.p95_ms <= slo_ms]
    return max(good, default=min(known, default=1))


def pairs(sides: Sequence[CoRunModel]) -> list[tuple[CoRunModel, ...]]:
    """Every pair of models, each with itself too."""
    return list(combinations_with_replacement(sides, 2))


def triples(sides: Sequence[CoRunModel]) -> list[tuple[CoRunModel, ...]]:
    """As many triples as there are models, each model in three of them: all would be too many."""
    count = len(sides)
    if count < 3:
        return []
    return [tuple(sides[(first + k) % count] for k in range(3)) for first in range(count)]


def coruns_from(
    runners: Sequence[CoRunner],
    alone: Sequence[Sequence[Interval]],
    beside: Sequence[Sequence[Interval]],
) -> list[CoRun]:
    """A ``CoRun`` for each runner, from the time during which all of them ran.

    A runner without a complete execution in that time is left out.
    """
    window = together(beside)
    if window is None:
        return []
    seen: list[CoRun] = []
    for place, runner in enumerate(runners):
        own = inside(beside[place], window)
        if not own:
            continue
        others = [run for other, run in enumerate(beside) if other != place]
        seen.append(
            CoRun(
                runner,
                tuple(one for other, one in enumerate(runners) if other != place),
                round(statistics.median(one.took_ms for one in alone[place]), 4),
                round(statistics.median(one.took_ms for one in own), 4),
                round(overlap(own, others), 4),
                len(own),
            )
        )
    return seen


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
    """Return the co-runs of models that still have these ``digests``; of all models without them.

    Raises:
        TableError: it is not such a file; the key, the value found, the value expected.
        OSError: it cannot be read.
    """
    found = read_table(read_json(path.read_bytes(), "a file of co-runs"), CoRunFile)
    if found.schema != SCHEMA:
        raise TableError("schema", str(found.schema), str(SCHEMA))
    if digests is None:
        return found.seen
    same = {name for name, digest in digests.items() if found.digests.get(name) == digest}
    return [one for one in found.seen if same >= {r.model for r in (one.runner, *one.neighbours)}]


_log = logging.getLogger(__name__)


def learned_interference(seen: Sequence[CoRun], profiles: Profiles) -> LearnedInterference | None:
    """Slowdowns learned from the co-runs of models with profiles; ``None`` if none ran long enough.

    Raises:
        ValueError: co-runs in shares below any of the profiles'.
    """
    usable = [one for one in observations(seen) if one.models <= profiles.keys()]
    return fit_learned(usable, from_profiles(profiles)) if usable else None


class NeighbourSlowdowns:
    """Co-runs of one kind of accelerator, as ``interlace profile --corun`` keeps them in a folder.

    Every model that it was asked about since is taken for a neighbour of the others. Without
    co-runs of models that are still the same, profiles stay as they were measured alone; a file
    that cannot be used is a warning.
    """

    def __init__(self, folder: Path, kind: str) -> None:
        self._path = corun_path(folder, kind)
        self._digests: dict[str, str] = {}
        self._alone: dict[str, Profile] = {}

    def busy(self, models: Sequence[Model], alone: Mapping[str, Profile]) -> dict[str, Profile]:
        """The profiles of ``models``, by deployment key, beside busy neighbours."""
        asked = [one for one in models if one.key in alone and alone[one.key].points]
        for one in asked:
            self._digests[one.name] = one.digest
            self._alone[one.name] = replace(alone[one.key], model=one.name)
        learned = self._learned()
        if learned is None:
            return dict(alone)
        beside, busy = list(self._alone.values()), dict(alone)
        for one in asked:
            slowed = slowed_profile(replace(alone[one.key], model=one.name), learned, beside)
            busy[one.key] = replace(slowed, model=alone[one.key].model)
        _log.info("slowdowns by neighbours are learned from %s", self._path)
        return busy

    def _learned(self) -> LearnedInterference | None:
        try:
            return learned_interference(read_coruns(self._path, self._digests), self._alone)
        except FileNotFoundError:
            return None
        except (OSError, ValueError) as error:
            _log.warning("%s: co-runs are not used: %s", self._path, error)
            return None
