"""A scheduler on a simulated V100 for some seconds: what the paper's figures count."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from typing import Final, NamedTuple

from bench.papers.dstack.v100 import BATCH, TABLE_6, V100
from bench.playing import played
from interlace.core.gpu_kinds import uniform_fleet
from interlace.core.hardware import Fleet
from interlace.core.plan import Demand, Partition, Plan, Slot
from interlace.core.profile import Profile
from interlace.core.request import Outcome
from interlace.perf.latency import surface
from interlace.policy.base import Dispatcher
from interlace.policy.catalog import resolve
from interlace.policy.dispatchers.dynamic_batching import DynamicBatching
from interlace.sim.arrivals import Uniform, Workload, merge_arrivals
from interlace.sim.record import RunRecord

#: Those that run models at their knees, with Table 6's batches, for as long as shares are free.
AT_KNEES: Final = frozenset({"dstack", "dstack-plain", "throughput", "maxmin"})
_HOUR_MS: Final = 3.6e6
_ANSWERED: Final = (Outcome.OK, Outcome.LATE)


class Case(NamedTuple):
    """Models with their rates, and what is known of them; knees in %, SLOs in ms."""

    rates_rps: Mapping[str, float]
    profiles: Mapping[str, Profile]
    knees_pct: Mapping[str, int]
    slos_ms: Mapping[str, float]
    gpus: Fleet = uniform_fleet(V100, 1)


class Figures(NamedTuple):
    """One run. Rates in requests/s by model; ``missed`` is the part late, dropped or refused.

    ``used_pct`` counts each batch at its model's knee, as the paper does for every scheduler, or at
    its share where that is smaller; ``busy_s`` is the time that each model's batches ran.
    """

    answered_rps: Mapping[str, float]
    in_time_rps: Mapping[str, float]
    missed: Mapping[str, float]
    missed_of_all: float
    used_pct: float
    busy_s: Mapping[str, float]
    record: RunRecord

    @property
    def total_rps(self) -> float:
        """Answered, whether in time or late: the paper's throughput."""
        return sum(self.answered_rps.values())

    @property
    def good_rps(self) -> float:
        """Answered in time."""
        return sum(self.in_time_rps.values())


def of_table_6(rates_rps: Mapping[str, float], profiles: Mapping[str, Profile]) -> Case:
    """Models of Table 6 on one V100."""
    known = {m: TABLE_6[m] for m in rates_rps}
    return Case(
        rates_rps,
        {m: profiles[m] for m in rates_rps},
        {m: one.knee_pct for m, one in known.items()},
        {m: one.slo_ms for m, one in known.items()},
    )


def run(
    name: str,
    case: Case,
    seconds: float,
    workloads: Mapping[str, Workload] | None = None,
    plan: Plan | None = None,
    dispatcher: Dispatcher | None = None,
) -> Figures:
    """Play a catalog row; gaps are uniformly distributed (section 6.3) unless others are given.

    With ``dispatcher`` the row has that one instead of its own.
    """
    row = resolve(name)
    traffic = workloads or {m: Uniform(rate) for m, rate in case.rates_rps.items()}
    record = played(
        replace(row, dispatcher=dispatcher or row.dispatcher),
        case.gpus,
        _demand(case),
        case.profiles,
        merge_arrivals(traffic, seconds, seed=6),
        plan or planned(name, case),
    )
    return figures(record, case)


def planned(name: str, case: Case) -> Plan:
    """Table 6 for those that run at knees, a part each for GSLICE; else what the planner says."""
    if name in AT_KNEES:
        return at_knees(case)
    if name == "gslice":
        return parted(case)
    return resolve(name).planner(_demand(case), case.gpus, case.profiles, Plan())


def at_knees(case: Case) -> Plan:
    """Table 6 as it is: knees already hold what section 5 says to give on top."""
    count = len(case.gpus.gpus)
    partitions = tuple(
        Partition(f"{gpu.id}:{m}", gpu.id, knee, (Slot(m, BATCH, case.rates_rps[m] / count),))
        for gpu in case.gpus.gpus
        for m, knee in case.knees_pct.items()
    )
    return Plan(partitions, session_ms=max(case.slos_ms.values()), overlapping=True)


def parted(case: Case) -> Plan:
    """GSLICE as the paper has it: a part for each model, at its knee if all fit.

    Knees that together exceed a GPU are scaled down, to steps of 5 %. A batch is as large as half
    of the SLO lets it be (adaptive batching). Our planner of that name would leave models out that
    do not fit at the rates asked for, and have them take turns with others.
    """
    step = case.gpus.gpus[0].shares_pct[0]
    scale = min(1.0, 100.0 / sum(case.knees_pct.values()))
    wanted = {m: knee * scale / step for m, knee in case.knees_pct.items()}
    shares = {m: max(1, int(steps)) for m, steps in wanted.items()}
    if scale < 1.0:
        spare = 100 // step - sum(shares.values())
        for m in sorted(wanted, key=lambda m: shares[m] - wanted[m])[:spare]:
            shares[m] += 1
    count = len(case.gpus.gpus)
    partitions = []
    for gpu in case.gpus.gpus:
        for m, steps in shares.items():
            known = surface(case.profiles[m], "median_ms")
            batch = known.largest_batch(case.slos_ms[m] / 2.0, steps * step, BATCH)
            slot = Slot(m, max(1, batch), case.rates_rps[m] / count)
            partitions.append(Partition(f"{gpu.id}:{m}", gpu.id, steps * step, (slot,)))
    return Plan(tuple(partitions))


def figures(record: RunRecord, case: Case) -> Figures:
    """Count a record."""
    span_s = (record.until_ms - record.from_ms) / 1000.0
    outcomes = Counter((one.model, one.outcome) for one in record.served)
    asked = Counter(one.model for one in record.served)
    in_time = {m: outcomes[m, Outcome.OK] / span_s for m in case.rates_rps}
    answered = {m: sum(outcomes[m, o] for o in _ANSWERED) / span_s for m in case.rates_rps}
    missed = {m: 1.0 - outcomes[m, Outcome.OK] / max(1, asked[m]) for m in case.rates_rps}
    of_all = sum(missed[m] * asked[m] for m in asked) / max(1, len(record.served))
    busy_s = dict.fromkeys(case.rates_rps, 0.0)
    used_pct = 0.0
    for one in record.executions:
        start_ms, end_ms = max(one.started_ms, record.from_ms), min(one.ended_ms, record.until_ms)
        took_s = max(0.0, end_ms - start_ms) / 1000.0
        busy_s[one.model] += took_s
        share_pct = min(one.share_pct, case.knees_pct[one.model])
        used_pct += share_pct * took_s / span_s / len(case.gpus.gpus)
    return Figures(answered, in_time, missed, of_all, used_pct, busy_s, record)


class Gathered(NamedTuple):
    """Requests/s answered while requests came, and the part that was late or never in a batch."""

    answered_rps: float
    missed_of_all: float


def every_time_16(case: Case, seconds: float) -> Gathered:
    """Fixed batches taken at their word: each full, however long it takes to come together.

    Section 7 says that the largest batch of 16 is picked "every time", and names no timeout. The
    catalog's row gives up waiting after half the SLO, as nobody would run a server without. And our
    engine drops who is hopeless, which a server that only gathers batches does not do, and which
    would keep a batch from ever being full. So here nobody is dropped, and lateness is counted
    afterwards.
    """
    patient = case._replace(slos_ms=dict.fromkeys(case.slos_ms, _HOUR_MS))
    waits = DynamicBatching(wait_part=float("inf"))
    record = run("fixed", patient, seconds, plan=planned("fixed", case), dispatcher=waits).record
    answered = [one for one in record.served if one.outcome is Outcome.OK]
    while_asked = sum(one.answered_ms <= record.until_ms for one in answered)
    in_time = sum(one.answered_ms - one.arrived_ms <= case.slos_ms[one.model] for one in answered)
    span_s = (record.until_ms - record.from_ms) / 1000.0
    return Gathered(while_asked / span_s, 1.0 - in_time / max(1, len(record.served)))


def _demand(case: Case) -> tuple[Demand, ...]:
    return tuple(Demand(m, rate, case.slos_ms[m], BATCH) for m, rate in case.rates_rps.items())
