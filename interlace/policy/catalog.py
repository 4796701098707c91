"""Every system by name: the rows of the package, installed ones, and ``module:attribute``."""

from __future__ import annotations

import sys
from dataclasses import replace
from functools import partial
from importlib import import_module
from importlib.metadata import entry_points
from typing import Final

from interlace.core.tables import did_you_mean
from interlace.core.user_errors import InputError
from interlace.perf.sizing import Sizing
from interlace.policy.admission import DeadlineAdmission
from interlace.policy.base import System
from interlace.policy.cold_policy import ColdPolicy
from interlace.policy.cold_starts.catalog import COLD_POLICIES
from interlace.policy.dispatchers.clockwork import clockwork
from interlace.policy.dispatchers.deadline import earliest_deadline
from interlace.policy.dispatchers.duty import duty
from interlace.policy.dispatchers.dynamic_batching import DynamicBatching
from interlace.policy.dispatchers.elastic import elastic, naive_elastic
from interlace.policy.dispatchers.greedy import max_min, max_throughput
from interlace.policy.dispatchers.spatial import ByRoom, side_by_side
from interlace.policy.dispatchers.spatiotemporal import SpatioTemporal
from interlace.policy.dispatchers.temporal import temporal
from interlace.policy.planners.auto import Auto
from interlace.policy.planners.dstack import Dstack
from interlace.policy.planners.e2bird import E2bird, ElasticWorkers, naive_engine, searched_engine
from interlace.policy.planners.gpulet import Gpulet, bestfit
from interlace.policy.planners.gslice import Gslice
from interlace.policy.planners.ideal import Ideal
from interlace.policy.planners.max_scale import MaxScale
from interlace.policy.planners.nested import Nested
from interlace.policy.planners.nexus import Nexus
from interlace.policy.planners.overcommitted import Overcommitted
from interlace.policy.planners.patterns import Patterns
from interlace.policy.planners.whole_gpus import Overlapping, colocated, spread, time_shared_packed
from interlace.policy.scaling import algorithm_2, grow_and_shrink

#: The group of entry points under which other packages offer systems.
GROUP: Final = "interlace.systems"

_KNEES: Final = Overlapping(MaxScale(Dstack()), sizing=Sizing(over_provision_pct=5))
#: Partitions of the size of knees; more of them stand than fit at once (D-STACK).
_at_knees = partial(System, planner=_KNEES, packer=Dstack(), within_100=True)
#: Duty cycles: every model takes its planned turn (Nexus, gpulet).
_in_cycles = partial(System, dispatcher=duty, cyclic_planner=True)
#: One worker, or one engine, for each model, on whole accelerators (E2bird's comparison).
_serving = partial(System, planner=spread, packer=E2bird())

_ROWS: Final = (
    System(
        "interlace",
        "ours",
        planner=Auto(
            Nested(),
            MaxScale(Patterns(), lowest=0.05, highest=12.8, steps=8),
            MaxScale(Patterns(apart=0), lowest=0.05, highest=12.8, steps=8),
            Overcommitted(),
        ),
        packer=Patterns(),
        dispatcher=ByRoom(earliest_deadline, side_by_side),
        admission=DeadlineAdmission(),
        scaler=grow_and_shrink,
        within_100=True,
        fair=True,
        tried=True,
    ),
    _in_cycles(
        "gpulet",
        "Choi et al., USENIX ATC 2022",
        planner=MaxScale(Gpulet()),
        packer=Gpulet(),
        admission=DeadlineAdmission(),
        scaler=algorithm_2,
        cyclic_packer=True,
    ),
    _at_knees("dstack", "Dhakal et al., D-STACK, 2023", dispatcher=SpatioTemporal()),
    _at_knees(
        "dstack-plain",
        "D-STACK section 6.1.1, without the dynamic fill",
        dispatcher=SpatioTemporal(fill=False),
    ),
    _at_knees("throughput", "D-STACK section 6.3, max-throughput", dispatcher=max_throughput),
    _at_knees("maxmin", "D-STACK section 6.3, max-min fair", dispatcher=max_min),
    _in_cycles(
        "nexus",
        "Shen et al., Nexus, SOSP 2019",
        planner=MaxScale(Nexus()),
        packer=Nexus(),
        admission=DeadlineAdmission(),
        scaler=grow_and_shrink,
        cyclic_packer=True,
    ),
    _in_cycles(
        "bestfit",
        "gpulet section 2.4, greedy best-fit partitioning",
        planner=MaxScale(bestfit),
        packer=bestfit,
        admission=DeadlineAdmission(),
        cyclic_packer=True,
    ),
    _in_cycles(
        "gslice", "Dhakal et al., GSLICE, SoCC 2020", planner=MaxScale(Gslice()), packer=Gslice()
    ),
    _in_cycles(
        "ideal",
        "gpulet section 5.2, exhaustive search",
        planner=MaxScale(Ideal(steps=300)),
        packer=Ideal(),
        admission=DeadlineAdmission(),
        cyclic_packer=True,
    ),
    _serving(
        "e2bird",
        "Cui et al., E2bird, TPDS 2021",
        planner=ElasticWorkers(spread, searched_engine),
        dispatcher=elastic,
        staged=True,
    ),
    _serving(
        "nebird",
        "E2bird section 7.2, N-Ebird",
        planner=ElasticWorkers(spread, naive_engine),
        dispatcher=naive_elastic,
        staged=True,
    ),
    _serving(
        "tfserving",
        "E2bird section 3.2, TensorFlow Serving, OPT_Wait",
        dispatcher=DynamicBatching(),
    ),
    _serving(
        "tfserving-nowait",
        "E2bird section 3.2, TensorFlow Serving, NO_Wait",
        dispatcher=DynamicBatching(wait_ms=0.0),
    ),
    _serving(
        "tfserving-static",
        "E2bird section 3.2, TensorFlow Serving, batches of one size",
        dispatcher=DynamicBatching(padded=True),
    ),
    System(
        "temporal",
        "D-STACK section 6, temporal sharing",
        planner=colocated,
        packer=time_shared_packed,
        dispatcher=temporal,
        cyclic_packer=True,
    ),
    System(
        "clockwork",
        "Gujarati et al., Clockwork, OSDI 2020",
        planner=colocated,
        packer=Nexus(),  # how many accelerators are needed, the paper does not say
        dispatcher=clockwork,
        admission=DeadlineAdmission(),
    ),
    _serving(
        "fixed",
        "D-STACK section 7, fixed batches under default MPS",
        planner=Overlapping(MaxScale(Dstack()), batch=16),
        dispatcher=DynamicBatching(wait_part=0.5),
    ),
    _serving(
        "triton",
        "D-STACK section 7, Triton: dynamic batches, one at a time",
        planner=colocated,
        dispatcher=DynamicBatching(wait_ms=0.0),
    ),
)

CATALOG: Final = {system.name: system for system in _ROWS}


def known_systems() -> list[str]:
    """The catalog's rows, then those that installed packages offer."""
    return [*CATALOG, *(point.name for point in entry_points(group=GROUP))]


def resolve(name: str) -> System:
    """The system of that name: a row of the catalog, an installed one, or ``module:attribute``.

    The attribute is a ``System`` or a function without arguments that returns one. A system from
    outside is named as it was asked for, so that logs and plan files lead back to it.

    Raises:
        ValueError: there is none; what was looked for, what there is, what it should have been.
    """
    if name in CATALOG:
        return CATALOG[name]
    if ":" in name:
        module, _, attribute = name.partition(":")
        if not module or not attribute:
            raise ValueError(f"system '{name}': expected module:attribute")
        return _named(_attribute(module, attribute, name), name)
    for point in entry_points(group=GROUP, name=name):
        return _named(_attribute(point.module, point.attr, f"{name} ({point.value})"), name)
    known = known_systems()
    hint = did_you_mean(name, known)
    raise ValueError(
        f"unknown system '{name}'{hint}; known: {', '.join(known)}, or your own as module:attribute"
    )


def _attribute(module: str, attribute: str, asked: str) -> object:
    """What a module holds under a name, dots allowed."""
    try:
        found: object = import_module(module)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{module}.".startswith(f"{error.name}."):
            raise ValueError(f"system {asked}: module '{module}' needs {error.name}") from None
        raise ValueError(
            f"system {asked}: there is no module '{error.name}' on the Python path or here"
        ) from None
    except Exception as error:
        raise ValueError(f"system {asked}: importing '{module}' raised {error!r}") from error
    for part in attribute.split("."):
        if not hasattr(found, part):
            hint = did_you_mean(part, dir(found))
            raise ValueError(f"system {asked}: '{module}' has no '{attribute}'{hint}")
        found = getattr(found, part)
    return found


def _named(found: object, name: str) -> System:
    """The system itself or the function's result, under the name that it was asked for by."""
    if callable(found):
        try:
            found = found()
        except Exception as error:
            raise ValueError(f"system {name}: calling it raised {error!r}") from error
    if not isinstance(found, System):
        raise ValueError(
            f"system {name}: it is a {type(found).__name__}; expected an interlace.policy.base."
            "System, or a function without arguments that returns one"
        )
    return replace(found, name=name)


def system_of(system: str | System) -> System:
    """The system itself, or by name: as ``policy.catalog.resolve``, or ``A+B`` for A with the
    dispatcher of B, and ``A/C`` or ``A+B/C`` for it with the answer to cold starts that is named C.
    Modules are looked for in the current folder, too, as ``python -m`` does.

    Raises:
        InputError: there is no such system; what there is, or what is wrong with it.
    """
    if isinstance(system, System):
        return system
    if ":" in system and "" not in sys.path:
        sys.path.insert(0, "")
    names, slash, cold = system.partition("/")
    first, _, other = names.partition("+")
    try:
        row = resolve(first.strip())
        if other:
            row = replace(row, name=names, dispatcher=resolve(other.strip()).dispatcher)
    except ValueError as error:
        raise InputError(str(error)) from None
    return replace(row, name=system, cold=_cold(cold.strip())) if slash else row


def _cold(name: str) -> ColdPolicy:
    if name not in COLD_POLICIES:
        hint = did_you_mean(name, COLD_POLICIES)
        known = ", ".join(COLD_POLICIES)
        raise InputError(f"no answer to cold starts is named '{name}'{hint}; known: {known}")
    return COLD_POLICIES[name]
