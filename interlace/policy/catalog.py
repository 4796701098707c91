"""Every system by name: the only list to edit when one is added."""

from __future__ import annotations

from difflib import get_close_matches
from typing import Final

from interlace.perf.sizing import Sizing
from interlace.policy.admission import DeadlineAdmission, admit_all
from interlace.policy.base import System
from interlace.policy.coldstart import copy
from interlace.policy.dispatchers.clockwork import clockwork
from interlace.policy.dispatchers.deadline import earliest_deadline
from interlace.policy.dispatchers.duty import duty
from interlace.policy.dispatchers.dynamic_batching import DynamicBatching
from interlace.policy.dispatchers.elastic import elastic, naive_elastic
from interlace.policy.dispatchers.greedy import max_min, max_throughput
from interlace.policy.dispatchers.spatiotemporal import SpatioTemporal
from interlace.policy.dispatchers.temporal import temporal
from interlace.policy.eviction import least_recently_used
from interlace.policy.planners.auto import Auto
from interlace.policy.planners.bestfit import bestfit
from interlace.policy.planners.colocated import colocated
from interlace.policy.planners.dstack import Dstack
from interlace.policy.planners.e2bird import E2bird
from interlace.policy.planners.elastic_workers import ElasticWorkers, naive_engine, searched_engine
from interlace.policy.planners.gpulet import Gpulet
from interlace.policy.planners.gslice import Gslice
from interlace.policy.planners.ideal import Ideal
from interlace.policy.planners.max_scale import MaxScale
from interlace.policy.planners.nested import Nested
from interlace.policy.planners.nexus import Nexus
from interlace.policy.planners.overlapping import Overlapping
from interlace.policy.planners.patterns import Patterns
from interlace.policy.planners.spread import spread
from interlace.policy.planners.time_shared import time_shared_packed
from interlace.policy.scaling import algorithm_2, fixed, grow_and_shrink

_KNEES: Final = Overlapping(MaxScale(Dstack()), sizing=Sizing(over_provision_pct=5))

CATALOG: Final[dict[str, System]] = {
    system.name: system
    for system in (
        System(
            name="interlace",
            source="ours",
            planner=Auto(Nested(), MaxScale(Patterns(), lowest=0.05, highest=12.8, steps=6)),
            packer=Patterns(),
            dispatcher=earliest_deadline,
            admission=DeadlineAdmission(),
            scaler=grow_and_shrink,
            cold_start=copy,
            eviction=least_recently_used,
        ),
        System(
            name="gpulet",
            source="Choi et al., USENIX ATC 2022",
            planner=MaxScale(Gpulet()),
            packer=Gpulet(),
            dispatcher=duty,
            admission=DeadlineAdmission(),
            scaler=algorithm_2,
            cold_start=copy,
            eviction=least_recently_used,
        ),
        System(
            name="dstack",
            source="Dhakal et al., D-STACK, 2023",
            planner=_KNEES,
            packer=Dstack(),
            dispatcher=SpatioTemporal(),
            admission=admit_all,
            scaler=fixed,
            cold_start=copy,
            eviction=least_recently_used,
        ),
        System(
            name="dstack-plain",
            source="D-STACK section 6.1.1, without the dynamic fill",
            planner=_KNEES,
            packer=Dstack(),
            dispatcher=SpatioTemporal(fill=False),
            admission=admit_all,
            scaler=fixed,
            cold_start=copy,
            eviction=least_recently_used,
        ),
        System(
            name="throughput",
            source="D-STACK section 6.3, max-throughput",
            planner=_KNEES,
            packer=Dstack(),
            dispatcher=max_throughput,
            admission=admit_all,
            scaler=fixed,
            cold_start=copy,
            eviction=least_recently_used,
        ),
        System(
            name="maxmin",
            source="D-STACK section 6.3, max-min fair",
            planner=_KNEES,
            packer=Dstack(),
            dispatcher=max_min,
            admission=admit_all,
            scaler=fixed,
            cold_start=copy,
            eviction=least_recently_used,
        ),
        System(
            name="nexus",
            source="Shen et al., Nexus, SOSP 2019",
            planner=MaxScale(Nexus()),
            packer=Nexus(),
            dispatcher=duty,
            admission=DeadlineAdmission(),
            scaler=grow_and_shrink,
            cold_start=copy,
            eviction=least_recently_used,
        ),
        System(
            name="bestfit",
            source="gpulet section 2.4, greedy best-fit partitioning",
            planner=MaxScale(bestfit),
            packer=bestfit,
            dispatcher=duty,
            admission=DeadlineAdmission(),
            scaler=fixed,
            cold_start=copy,
            eviction=least_recently_used,
        ),
        System(
            name="gslice",
            source="Dhakal et al., GSLICE, SoCC 2020",
            planner=MaxScale(Gslice()),
            packer=Gslice(),
            dispatcher=duty,
            admission=admit_all,
            scaler=fixed,
            cold_start=copy,
            eviction=least_recently_used,
        ),
        System(
            name="ideal",
            source="gpulet section 5.2, exhaustive search",
            planner=MaxScale(Ideal(steps=300)),
            packer=Ideal(),
            dispatcher=duty,
            admission=DeadlineAdmission(),
            scaler=fixed,
            cold_start=copy,
            eviction=least_recently_used,
        ),
        System(
            name="e2bird",
            source="Cui et al., E2bird, TPDS 2021",
            planner=ElasticWorkers(spread, searched_engine),
            packer=E2bird(),
            dispatcher=elastic,
            admission=admit_all,
            scaler=fixed,
            cold_start=copy,
            eviction=least_recently_used,
            staged=True,
        ),
        System(
            name="nebird",
            source="E2bird section 7.2, N-Ebird",
            planner=ElasticWorkers(spread, naive_engine),
            packer=E2bird(),
            dispatcher=naive_elastic,
            admission=admit_all,
            scaler=fixed,
            cold_start=copy,
            eviction=least_recently_used,
            staged=True,
        ),
        System(
            name="tfserving",
            source="E2bird section 3.2, TensorFlow Serving, OPT_Wait",
            planner=spread,
            packer=E2bird(),
            dispatcher=DynamicBatching(),
            admission=admit_all,
            scaler=fixed,
            cold_start=copy,
            eviction=least_recently_used,
        ),
        System(
            name="tfserving-nowait",
            source="E2bird section 3.2, TensorFlow Serving, NO_Wait",
            planner=spread,
            packer=E2bird(),
            dispatcher=DynamicBatching(wait_ms=0.0),
            admission=admit_all,
            scaler=fixed,
            cold_start=copy,
            eviction=least_recently_used,
        ),
        System(
            name="tfserving-static",
            source="E2bird section 3.2, TensorFlow Serving, batches of one size",
            planner=spread,
            packer=E2bird(),
            dispatcher=DynamicBatching(padded=True),
            admission=admit_all,
            scaler=fixed,
            cold_start=copy,
            eviction=least_recently_used,
        ),
        System(
            name="temporal",
            source="D-STACK section 6, temporal sharing",
            planner=colocated,
            packer=time_shared_packed,
            dispatcher=temporal,
            admission=admit_all,
            scaler=fixed,
            cold_start=copy,
            eviction=least_recently_used,
        ),
        System(
            name="clockwork",
            source="Gujarati et al., Clockwork, OSDI 2020",
            planner=colocated,
            packer=Nexus(),  # how many accelerators are needed, the paper does not say
            dispatcher=clockwork,
            admission=DeadlineAdmission(),
            scaler=fixed,
            cold_start=copy,
            eviction=least_recently_used,
        ),
        System(
            name="fixed",
            source="D-STACK section 7, fixed batches under default MPS",
            planner=Overlapping(MaxScale(Dstack()), batch=16),
            packer=E2bird(),
            dispatcher=DynamicBatching(wait_part=0.5),
            admission=admit_all,
            scaler=fixed,
            cold_start=copy,
            eviction=least_recently_used,
        ),
        System(
            name="triton",
            source="D-STACK section 7, Triton: dynamic batches, one at a time",
            planner=colocated,
            packer=E2bird(),
            dispatcher=DynamicBatching(wait_ms=0.0),
            admission=admit_all,
            scaler=fixed,
            cold_start=copy,
            eviction=least_recently_used,
        ),
    )
}


def resolve(name: str) -> System:
    """The catalog's row of that name.

    Raises:
        KeyError: no such row; the message lists what there is.
    """
    if name not in CATALOG:
        near = get_close_matches(name, CATALOG, n=1)
        hint = f" (did you mean {near[0]}?)" if near else ""
        raise KeyError(f"unknown system '{name}'{hint}; known: {', '.join(CATALOG)}")
    return CATALOG[name]
