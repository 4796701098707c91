"""Readers of the two public sets of measured pairs, where they are; nothing of them is kept."""

import csv
import json
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from interlace.core.profile import LatencyPoint, Profile
from interlace.perf.interference import CoRunner
from interlace.perf.slowdown.observation import FromProfiles, Observation, from_profiles

_IGNITER = "i-Gniter/Profile/tools/gpulet.config"
_GPULET = "data/interference.csv"


class Measured(NamedTuple):
    """A set by its short name: what was observed, and what each batch does alone."""

    name: str
    seen: list[Observation]
    profiles: dict[str, Profile]

    @property
    def solos(self) -> FromProfiles:
        """What the profiles say of every batch."""
        return from_profiles(self.profiles)


def read(data: Path) -> Measured:
    """The pairs of a clone or git directory of icloud-ecnu/igniter or 0909wlgur/Gpulet.

    Raises:
        ValueError: it is neither.
    """
    if _text(data, _IGNITER):
        return _igniter(data)
    if _text(data, _GPULET):
        return _gpulet(data)
    raise ValueError(f"{data} has neither {_IGNITER} nor {_GPULET}: clone one of the two sets")


def _igniter(data: Path) -> Measured:
    """750 pairs of four models on a V100 as 1,500 observations."""
    merged: dict[str, Any] = {}
    for line in _text(data, _IGNITER).splitlines():
        for key, value in (json.loads(line) if line.strip() else {}).items():
            merged.setdefault(key, {}).update(value)
    pairs = merged.pop("interference")["latency"]
    profiles = {model: _profile(model, kinds) for model, kinds in merged.items()}
    seen = []
    for first, second, batch, batch_2, share, ms, ms_2 in pairs:
        one, two = CoRunner(first, batch, share), CoRunner(second, batch_2, 100 - share)
        for runner, other, beside_ms in ((one, two, ms), (two, one, ms_2)):
            alone_ms = merged[runner.model]["latency"][str(runner.batch)][str(runner.share_pct)]
            seen.append(Observation(runner, (other,), beside_ms / alone_ms))
    return Measured("igniter", seen, profiles)


def _profile(model: str, kinds: Mapping[str, Mapping[str, Mapping[str, float]]]) -> Profile:
    latency, l2, dram = kinds["latency"], kinds["l2cache"], kinds["dram"]
    points, pressure = {}, {}
    for batch, by_share in latency.items():
        for share, ms in by_share.items():
            key = int(batch), int(share)
            points[key] = LatencyPoint(ms, ms, ms, 1)
            if share in l2.get(batch, {}):
                pressure[key] = (l2[batch][share] / 100, dram[batch][share] / 100)
    return Profile(model, "igniter", "v100", 0, 0, points, pressure=pressure)


def _gpulet(data: Path) -> Measured:
    """3,675 observations of three models beside five."""
    points: dict[str, dict[tuple[int, int], LatencyPoint]] = {}
    for model, batch, share, _, _, _, seconds, *_ in _rows(data, "data/inference.csv"):
        ms = 1000 * float(seconds)
        points.setdefault(model, {})[int(batch), int(share)] = LatencyPoint(ms, ms, ms, 1)
    pressure: dict[str, dict[tuple[int, int], tuple[float, float]]] = {}
    for model, batch, share, _, dram, _, l2, *_ in _rows(data, "data/mem_util.csv"):
        both = (float(l2) / 100, float(dram) / 100)
        pressure.setdefault(model, {})[int(batch), int(share)] = both
    profiles = {
        model: Profile(model, "gpulet", "unknown", 0, 0, known, pressure=pressure[model])
        for model, known in points.items()
    }
    seen = []
    for row in _rows(data, _GPULET):
        runner = CoRunner(row[0], int(row[1]), int(row[2]))
        other = CoRunner(row[3], int(row[4]), 100 - runner.share_pct)
        alone_ms = points[runner.model][runner.batch, runner.share_pct].median_ms
        seen.append(Observation(runner, (other,), 1000 * float(row[8]) / alone_ms))
    return Measured("gpulet", seen, profiles)


def _rows(data: Path, path: str) -> list[list[str]]:
    return list(csv.reader(_text(data, path).splitlines()))


def _text(data: Path, path: str) -> str:
    """The file of a clone or of a git directory's newest commit; nothing if there is none."""
    if (data / path).exists():
        return (data / path).read_text()
    command = ["git", "-C", str(data), "show", f"HEAD:{path}"]
    return subprocess.run(command, check=False, capture_output=True, text=True).stdout
