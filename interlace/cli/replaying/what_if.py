"""A log's requests played again: by another system, at other rates, SLOs or accelerators."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import count
from typing import Final

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from interlace.core.hardware import Fleet
from interlace.core.messages import ModelsDeployed, RefusedUpstream, RequestArrived
from interlace.core.plan import Demand
from interlace.core.profile import Profile
from interlace.core.user_errors import InputError
from interlace.packing.bounds import most_in_time
from interlace.planning.parallel import in_parallel, usable_cores
from interlace.policy.base import System
from interlace.policy.catalog import system_of
from interlace.runtime.log.codec import LogFile, glance
from interlace.sim.arrivals import Arrivals
from interlace.sim.observers import AnswerTimes
from interlace.sim.run import play
from interlace.sim.scenario import Simulation

#: How often rates are looked at: a plan for the noise of a second takes longer than all requests.
_EPOCH_MS: Final = 60_000.0
_FORMS: Final = "system=NAME, rates=X, slos=X, gpus=N or gpus=-1"


class WhatIfRow(Struct, frozen=True):
    """What became of the log's requests: in time in parts of 1, latencies in ms.

    No scheduler has more in time on these accelerators than ``bound_rps``; ``regret`` is the part
    of that which was missed. Both are ``None`` where accelerators differ.
    """

    name: str
    gpus: int
    requests: int
    goodput_rps: float
    in_time: float
    worst_model: str
    worst_in_time: float
    p99_ms: float | None
    bound_rps: float | None
    regret: float | None


@dataclass(frozen=True, slots=True)
class LoggedTraffic:
    """The requests of a log, and the models and accelerators that served them.

    Each request has a number in ``which``, that of its model, and a place in the other arrays.
    """

    system: System
    fleet: Fleet
    profiles: Mapping[str, Profile]
    models: tuple[str, ...]
    which: NDArray[np.int32]
    times_ms: NDArray[np.float64]  #: after the first request
    slos_ms: NDArray[np.float64]
    rows: NDArray[np.float64]
    seconds: float


def logged_traffic(log: LogFile, system: System, last_s: float) -> LoggedTraffic:
    """The requests of the last ``last_s`` seconds of a log, and the last profiles in it.

    Raises:
        InputError: the log is damaged, or no request came.
    """
    number: dict[str, int] = {}
    found: list[tuple[int, float, float, int]] = []
    last: dict[str, tuple[float, int]] = {}
    profiles, now_ms = dict(log.header.profiles), 0.0
    try:
        for now_ms, event in map(glance, log.entries()):
            if isinstance(event, RequestArrived):
                one = event.request
                like = last[one.model] = one.deadline_ms - one.arrived_ms, one.rows
                found.append((number.setdefault(one.model, len(number)), one.arrived_ms, *like))
            elif isinstance(event, ModelsDeployed):
                profiles |= {new.demand.model: new.profile for new in event.deployments}
            elif isinstance(event, RefusedUpstream) and event.model in last:
                # Refused like the request before them, without a record of their own.
                found += [(number[event.model], now_ms, *last[event.model])] * event.requests
    except ValueError as error:
        raise InputError(f"{log.path}: {error}") from None
    which, times_ms, slos_ms, rows = np.array(found, dtype=float).reshape(-1, 4).T
    kept = (times_ms >= now_ms - last_s * 1000.0) & np.isin(
        which, [at for name, at in number.items() if name in profiles]
    )
    if not kept.any():
        raise InputError(f"{log.path}: no request came in the last {last_s:g} s of the log")
    names = list(number)
    known, which = np.unique(which[kept], return_inverse=True)
    begins_ms = times_ms[kept][0]
    return LoggedTraffic(
        system,
        log.header.fleet,
        profiles,
        tuple(names[int(at)] for at in known),
        which.astype(np.int32),
        times_ms[kept] - begins_ms,
        slos_ms[kept],
        rows[kept],
        max((now_ms - float(begins_ms)) / 1000.0, 0.1),
    )


def what_if(traffic: LoggedTraffic, changes: Sequence[str]) -> list[WhatIfRow]:
    """The traffic as it came, then with each of ``changes``; several in one are joined by commas.

    Everything is simulated, the first row too: rows differ in what was asked alone.

    Raises:
        InputError: a change is not of a form that is known.
    """
    scenarios = [_scenario(traffic, 1.0, 1.0), *(_changed(traffic, one) for one in changes)]
    asked = list(zip(["as it came", *changes], scenarios, strict=True))
    return in_parallel(_row, asked, [1.0] * len(asked), usable_cores())


def _changed(traffic: LoggedTraffic, changes: str) -> Simulation:
    rates = slos = 1.0
    for change in changes.split(","):
        kind, equals, value = change.partition("=")
        match kind if equals else "":
            case "system":
                traffic = replace(traffic, system=system_of(value))
            case "rates":
                rates = _factor(change, value)
            case "slos":
                slos = _factor(change, value)
            case "gpus":
                traffic = replace(traffic, fleet=_fleet(traffic.fleet, change, value))
            case _:
                raise InputError(f"--what-if {change}: expected {_FORMS}")
    return _scenario(traffic, rates, slos)


def _row(asked: tuple[str, Simulation]) -> WhatIfRow:
    name, scenario = asked
    found, seconds = AnswerTimes(), scenario.arrivals.seconds
    play(scenario, [found])
    in_time = {one: found.in_time[one] / len(taken) for one, taken in found.taken_ms.items()}
    worst = min(sorted(in_time), key=in_time.__getitem__)
    goodput_rps = sum(found.in_time.values()) / seconds
    taken_ms = np.concatenate([np.array(one) for one in found.taken_ms.values()])
    answered = taken_ms[np.isfinite(taken_ms)]
    bound_rps = _bound_rps(scenario)
    return WhatIfRow(
        name,
        len(scenario.fleet.gpus),
        found.requests,
        goodput_rps,
        goodput_rps * seconds / found.requests,
        worst,
        in_time[worst],
        float(np.percentile(answered, 99)) if len(answered) else None,
        bound_rps,
        None if not bound_rps else max(0.0, 1.0 - goodput_rps / bound_rps),
    )


def _bound_rps(scenario: Simulation) -> float | None:
    """What no scheduler exceeds; requests of the end may be answered within an SLO after it."""
    gpus, arrivals = scenario.fleet.gpus, scenario.arrivals
    if not scenario.fleet.alike:
        return None
    counts = np.bincount(arrivals.which, minlength=len(arrivals.models)) / arrivals.seconds
    rates = dict(zip(arrivals.models, counts.tolist(), strict=True))
    demand = [replace(one, rows_per_s=rates[one.model]) for one in scenario.demand]
    after_s = max(one.slo_ms for one in demand) / 1000.0
    accelerators = len(gpus) * (1.0 + after_s / arrivals.seconds)
    return most_in_time(demand, gpus[0], accelerators, scenario.truth)


def _scenario(traffic: LoggedTraffic, rates: float, slos: float) -> Simulation:
    seconds = traffic.seconds / rates
    demand = []
    for number, name in enumerate(traffic.models):
        own = traffic.which == number
        slo_ms = float(np.median(traffic.slos_ms[own])) * slos
        most = max(rows for rows, _ in traffic.profiles[name].points)
        demand.append(Demand(name, float(traffic.rows[own].sum()) / seconds, slo_ms, most))
    profiles = {name: traffic.profiles[name] for name in traffic.models}
    arrivals = Arrivals(traffic.models, traffic.times_ms / rates, traffic.which, seconds)
    return Simulation(
        traffic.system,
        traffic.fleet,
        tuple(demand),
        profiles,
        profiles,
        arrivals,
        epoch_ms=_EPOCH_MS,
    )


def _factor(change: str, value: str) -> float:
    try:
        factor = float(value)
    except ValueError:
        factor = 0.0
    if not 0.01 <= factor <= 100.0:
        raise InputError(f"--what-if {change}: expected a factor from 0.01 to 100")
    return factor


def _fleet(fleet: Fleet, change: str, value: str) -> Fleet:
    """So many accelerators, or so many more or less than there are; more are like the last one."""
    try:
        wanted = len(fleet.gpus) + int(value) if value[:1] in "+-" else int(value)
    except ValueError:
        wanted = 0
    if not 1 <= wanted <= 1000:
        raise InputError(f"--what-if {change}: expected at least 1 accelerator, such as gpus=+1")
    gpus, taken = list(fleet.gpus[:wanted]), {gpu.id for gpu in fleet.gpus}
    fresh = (f"more{number}" for number in count(1))
    while len(gpus) < wanted:
        gpus.append(replace(gpus[-1], id=next(one for one in fresh if one not in taken)))
    return replace(fleet, gpus=tuple(gpus))
