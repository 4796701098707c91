"""Table 3: DNN-Recog and two more models, by a timetable that repeats."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Final, NamedTuple

import numpy as np

from bench.harness import Report, Row, bars
from bench.papers.apps import recog
from bench.papers.dstack.v100 import TABLE_6
from bench.papers.dstack.v100 import profile as shaped
from bench.papers.primitives.running import batch_latency
from bench.papers.primitives.v100 import RECOG_GAIN, ROUND_MS, SYSTEM_GAIN, TABLE_3_SHARES_PCT, V100
from bench.papers.primitives.v100 import profile as logged
from bench.playing import played
from interlace.core.gpu_kinds import uniform_fleet
from interlace.core.plan import Demand, Partition, Plan, Slot
from interlace.core.profile import LatencyPoint, Profile
from interlace.core.request import Outcome
from interlace.perf.latency import Surface, surface
from interlace.policy.catalog import resolve
from interlace.policy.decision import Dispatch, Launch
from interlace.policy.view import View
from interlace.sim.apps import SimulatedApp
from interlace.sim.arrivals import Workload, merge_arrivals
from interlace.sim.record import AppServed, RunRecord, ServedRequest
from interlace.sim.workload.traces import ReplayedTrace

#: From the end of a batch until those who wait for it have come: nothing, but for rounding.
HOP_MS: Final = 0.01
#: The engine drops what it believes will be late, and its beliefs waver by a percent.
SLACK_MS: Final = 1.0
_ROUNDING_MS: Final = 1e-6


class Entry(NamedTuple):
    """A batch of the timetable, ``begins_ms`` after its cycle began."""

    begins_ms: float
    model: str
    share_pct: int
    rows: int


@dataclass(frozen=True, slots=True)
class Timetable:
    """A dispatcher: each entry begins once a cycle, at its time, with what is there of its rows."""

    entries: tuple[Entry, ...]
    cycle_ms: float

    def __call__(self, view: View, now_ms: float) -> Dispatch:
        begun_ms = now_ms - (now_ms + _ROUNDING_MS) % self.cycle_ms
        launches: list[Launch] = []
        wake_ms = begun_ms + self.cycle_ms + HOP_MS
        homes = {slot.model: partition for partition in view.partitions for slot in partition.slots}
        for entry in self.entries:
            at_ms, home = begun_ms + entry.begins_ms, homes.get(entry.model)
            if now_ms < at_ms - _ROUNDING_MS:
                wake_ms = min(wake_ms, at_ms)
            elif home is None or not home.accepting or home.running is not None:
                continue
            elif home.last_start_ms(entry.model) < at_ms - HOP_MS and view.queue(entry.model).rows:
                launches.append(Launch(home.id, entry.model, entry.rows))
        return Dispatch(tuple(launches), wake_ms)


def follow(
    table: Timetable,
    profiles: Mapping[str, Profile],
    apps: Mapping[str, SimulatedApp],
    each_round: Mapping[str, Sequence[int]],
    round_ms: float,
    rounds: int,
) -> RunRecord:
    """Requests come in whole rounds: of each app or model so many in the 1st, 2nd, ... round,
    over and over. Every one has the round's length for its answer, and a little more before it is
    given up."""
    shares = {entry.model: entry.share_pct for entry in table.entries}
    parts = tuple(
        Partition(model, "gpu0", share, (Slot(model, 32, 1.0),)) for model, share in shares.items()
    )
    demand = tuple(Demand(model, 1.0, round_ms + SLACK_MS, 32) for model in shares)
    known = {model: profiles[model] for model in shares}
    traffic: dict[str, Workload] = {
        name: ReplayedTrace(
            np.repeat(np.arange(rounds) * round_ms, np.resize(counts, rounds)).astype(float)
        )
        for name, counts in each_round.items()
    }
    return played(
        replace(resolve("triton"), dispatcher=table),
        uniform_fleet(V100, 1),
        demand,
        known,
        merge_arrivals(traffic, rounds * round_ms / 1000.0, seed=0),
        Plan(parts, overlapping=True),
        warm_ms=100 * table.cycle_ms,
        apps=apps,
    )


RECOG: Final = ("mobilenet", "vgg-face", "resnet-car")
BESIDE: Final = ("yolo", "resnext50")
_MOST: Final = 32
_GAIN: Final = 0.05
_VGG_FACE, _YOLO = 15.5 / 19.6, 9.5 / 19.6

Surfaces = Mapping[str, Surface]


class Schedule(NamedTuple):
    """A timetable, and rows of each app or model in the 1st, 2nd, ... round."""

    table: Timetable
    rows: Mapping[str, tuple[int, ...]]

    def per_round(self, name: str) -> float:
        return sum(self.rows[name]) / len(self.rows[name])


def table3(*, rounds: Annotated[int, "of 30 ms"] = 300) -> Report:
    """Table III: DNN-Recog, ResNeXt and Yolo on one V100, one after the other and side by side.

    Rounds of 30 ms, in which what came at the round's beginning is answered. Temporal sharing: each
    model in turn has the whole GPU. Spatio-temporal: shares of 25, 40, 50, 50 and 60 %;
    Batch-Latency gives the batches that end in the time that is left. DNN-Recog gets the largest
    batch with which Yolo and ResNeXt still have one row. Left open: the latencies (D-STACK's Table
    6 with its equations, and the TensorRT logs; VGG-Face and Yolo in proportion to VGG-19's
    multiplications). "Filled" gives Yolo and ResNeXt all the time that temporal sharing leaves.
    """
    rows: list[Row] = []
    shown: dict[str, dict[str, float]] = {}
    for source, profiles in (("PyTorch", of_table_6()), ("TensorRT logs", of_logs())):
        known = {model: surface(one, "median_ms") for model, one in profiles.items()}
        plans = {
            "temporal": temporal(known),
            "temporal, filled": temporal(known, _MOST),
            "spatio-temporal": spatial(known),
        }
        good = {way: in_time(plan, profiles, rounds) for way, plan in plans.items()}
        shown = shown or good
        whole = {way: sum(found.values()) for way, found in good.items()}
        after, before = good["spatio-temporal"]["recog"], good["temporal"]["recog"]
        best = whole["spatio-temporal"]
        rows += [
            Row(f"{source}: DNN-Recog over temporal", RECOG_GAIN, after / before),
            Row(f"{source}: all over temporal", SYSTEM_GAIN, best / whole["temporal"]),
            Row(f"{source}: all over temporal, filled", None, best / whole["temporal, filled"]),
        ]
        for way, plan in plans.items():
            for name in ("recog", *BESIDE):
                what = f"{source}, {way}: {name}"
                rows.append(Row(f"{what}, rows a round", None, plan.per_round(name)))
                rows.append(Row(f"{what}, in time", None, good[way][name], " /s"))
    series = {way: list(good.values()) for way, good in shown.items()}
    drawn = bars(("DNN-Recog", "Yolo", "ResNeXt-50"), series, "in 30 ms, requests/s")
    return Report(rows, drawn, (6.0, 3.0))


def of_table_6() -> dict[str, Profile]:
    """PyTorch's latencies, from what D-STACK prints."""
    known = {m: shaped(m, one.knee_pct, one.run_ms, _GAIN, steep=0.0) for m, one in TABLE_6.items()}
    return _five(known, known["resnext50"])


def of_logs() -> dict[str, Profile]:
    """TensorRT's, ResNeXt-50 as much slower than ResNet-50 as in D-STACK's Table 6 at 50 %."""
    known = {m: logged(m) for m in ("mobilenet", "vgg19", "resnet50")}
    slower = TABLE_6["resnext50"].run_ms / (TABLE_6["resnet50"].run_ms * 0.8)
    return _five(known, times(known["resnet50"], slower))


def _five(known: Mapping[str, Profile], resnext: Profile) -> dict[str, Profile]:
    return {
        "mobilenet": times(known["mobilenet"]),
        "vgg-face": times(known["vgg19"], _VGG_FACE),
        "resnet-car": times(known["resnet50"]),
        "resnext50": times(resnext),
        "yolo": times(known["vgg19"], _YOLO),
    }


def times(profile: Profile, factor: float = 1.0) -> Profile:
    """A profile with every latency ``factor`` times as long, and no spread."""
    points = {
        key: LatencyPoint(*(point.median_ms * factor,) * 3, point.samples)
        for key, point in profile.points.items()
    }
    return replace(profile, points=points)


def temporal(known: Surfaces, most: int = 1) -> Schedule:
    """Each in turn on the whole GPU; Yolo and ResNeXt take turns at what DNN-Recog leaves, up to
    ``most`` rows at once."""

    def left_ms(rows: int) -> float:
        taken_ms = sum(known[model].latency_ms(rows, 100) for model in RECOG)
        return ROUND_MS - taken_ms - (len(RECOG) + 2) * HOP_MS

    rows = _largest(lambda n: all(batch_latency(known[m], 100, left_ms(n), _MOST) for m in BESIDE))
    entries: list[Entry] = []
    beside: dict[str, int] = {}
    for turn, model in enumerate(BESIDE):
        at_ms = turn * ROUND_MS + HOP_MS  # all of the round has come
        for one in RECOG:
            entries.append(Entry(at_ms, one, 100, rows))
            at_ms += known[one].latency_ms(rows, 100) + HOP_MS
        beside[model] = batch_latency(known[model], 100, left_ms(rows), most)
        entries.append(Entry(at_ms, model, 100, beside[model]))
    counts = {
        "recog": (rows, rows),
        "yolo": (beside["yolo"], 0),
        "resnext50": (0, beside["resnext50"]),
    }
    return Schedule(Timetable(tuple(entries), 2 * ROUND_MS), counts)


def spatial(known: Surfaces) -> Schedule:
    """MobileNet, then VGG-Face in 40 %; beside them Yolo, ResNet-Car, ResNeXt in the other 60 %."""
    shares = TABLE_3_SHARES_PCT

    def ms(model: str, rows: int) -> float:
        return known[model].latency_ms(rows, shares[model])

    def batches(rows: int) -> tuple[int, int]:
        """Of Yolo, before ResNet-Car, and of ResNeXt after it; 0 if it does not fit."""
        mobile_ms, car_ms = ms("mobilenet", rows), ms("resnet-car", rows)
        if mobile_ms + ms("vgg-face", rows) + 3 * HOP_MS > ROUND_MS:
            return 0, 0
        best = (0, 0)
        for yolo in range(1, _MOST + 1):
            begins_ms = max(mobile_ms, ms("yolo", yolo)) + 2 * HOP_MS
            left_ms = ROUND_MS - begins_ms - car_ms - 2 * HOP_MS
            beside = batch_latency(known["resnext50"], shares["resnext50"], left_ms, _MOST)
            if beside and yolo + beside > sum(best):
                best = yolo, beside
        return best

    rows = _largest(lambda n: all(batches(n)))
    yolo, beside = batches(rows)
    mobile_ms = ms("mobilenet", rows) + 2 * HOP_MS
    car_ms = max(mobile_ms, ms("yolo", yolo) + 2 * HOP_MS)
    entries = (
        Entry(HOP_MS, "mobilenet", shares["mobilenet"], rows),
        Entry(HOP_MS, "yolo", shares["yolo"], yolo),
        Entry(mobile_ms, "vgg-face", shares["vgg-face"], rows),
        Entry(car_ms, "resnet-car", shares["resnet-car"], rows),
        Entry(car_ms + ms("resnet-car", rows) + HOP_MS, "resnext50", shares["resnext50"], beside),
    )
    counts = {"recog": (rows,), "yolo": (yolo,), "resnext50": (beside,)}
    return Schedule(Timetable(entries, ROUND_MS), counts)


def _largest(fits: Callable[[int], bool]) -> int:
    """The largest batch that fits, none larger having fitted; 0 if one row does not."""
    rows = 0
    while rows < _MOST and fits(rows + 1):
        rows += 1
    return rows


def in_time(schedule: Schedule, profiles: Mapping[str, Profile], rounds: int) -> dict[str, float]:
    """What the engine answers in time under a timetable, requests/s."""
    app = recog(slo_ms=ROUND_MS + SLACK_MS)
    counts = {name: rows for name, rows in schedule.rows.items() if sum(rows)}
    record = follow(schedule.table, profiles, {"recog": app}, counts, ROUND_MS, rounds)
    seconds = rounds * ROUND_MS / 1000.0
    found = Counter(one.app for one in record.apps if _punctual(one))
    found += Counter(one.model for one in record.served if _punctual(one))
    return {name: found[name] / seconds for name in ("recog", *BESIDE)}


def _punctual(one: AppServed | ServedRequest) -> bool:
    return one.outcome is Outcome.OK and one.answered_ms - one.arrived_ms <= ROUND_MS
