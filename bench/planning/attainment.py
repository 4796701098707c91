"""A plan put to the test: random arrivals in virtual time, and who was answered within the SLO."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Final

import numpy as np

from bench.playing import played
from interlace.core.hardware import Fleet
from interlace.core.plan import Demand, Plan
from interlace.core.profile import Profile
from interlace.core.request import Outcome
from interlace.policy.catalog import resolve
from interlace.sim.arrivals import Arrivals

#: Time for partitions to be carved and models loaded, before anything arrives.
_WARM_MS: Final = 5_000.0


def attainment(
    plan: Plan,
    demand: Sequence[Demand],
    fleet: Fleet,
    profiles: Mapping[str, Profile],
    seconds: float = 20.0,
    seed: int = 0,
    system: str = "interlace",
) -> Mapping[str, float]:
    """Part of each model's requests answered within its SLO; refusals count as violations.

    Arrivals are a renewal process of gamma gaps with the demand's rate and ``cv``. The plan is
    kept; dispatch and admission are the system's.
    """
    arrivals = _drawn([one for one in demand if one.rows_per_s > 0], seconds, seed)
    record = played(
        resolve(system), fleet, demand, profiles, arrivals, plan, warm_ms=_WARM_MS, epoch_ms=1000.0
    )
    sent = Counter(one.model for one in record.served)
    in_time = Counter(one.model for one in record.served if one.outcome is Outcome.OK)
    return {model: in_time[model] / count for model, count in sent.items()}


def _drawn(demand: Sequence[Demand], seconds: float, seed: int) -> Arrivals:
    """Each model's requests, from a stream of random numbers of its own."""
    random = np.random.default_rng(seed)
    each = []
    for one in demand:
        count = int(one.rows_per_s * seconds * 1.5) + 20
        shape = 1.0 / one.cv**2
        gaps = random.spawn(1)[0].gamma(shape, 1000.0 / one.rows_per_s / shape, count)
        times = np.cumsum(gaps)
        each.append(times[times < seconds * 1000.0])
    times = np.concatenate(each)
    which = np.repeat(np.arange(len(demand), dtype=np.int32), [len(one) for one in each])
    order = np.argsort(times, kind="stable")
    return Arrivals(tuple(one.model for one in demand), times[order], which[order], seconds)
