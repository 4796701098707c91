"""Every system by name: the only list to edit when one is added."""

from __future__ import annotations

from difflib import get_close_matches
from typing import Final

from interlace.policy.admission import Deadline, everyone
from interlace.policy.base import System
from interlace.policy.coldstart import copy
from interlace.policy.dispatchers.deadline import deadline
from interlace.policy.dispatchers.duty import duty
from interlace.policy.eviction import least_recently_used
from interlace.policy.planners.dstack import Dstack
from interlace.policy.planners.gpulet import Gpulet
from interlace.policy.planners.nested import Nested
from interlace.policy.planners.patterns import Patterns
from interlace.policy.planners.whole import whole
from interlace.policy.planners.widest import Widest
from interlace.policy.scaling import fixed, grow_and_shrink

CATALOG: Final[dict[str, System]] = {
    system.name: system
    for system in (
        System(
            name="interlace",
            source="ours",
            planner=Nested(),
            packer=Patterns(),
            dispatcher=deadline,
            admission=Deadline(),
            scaler=grow_and_shrink,
            cold_start=copy,
            eviction=least_recently_used,
        ),
        System(
            name="gpulet",
            source="Choi et al., USENIX ATC 2022",
            planner=Widest(Gpulet()),
            packer=Gpulet(),
            dispatcher=duty,
            admission=Deadline(),
            scaler=grow_and_shrink,
            cold_start=copy,
            eviction=least_recently_used,
        ),
        System(
            name="dstack",
            source="Dhakal et al., D-STACK, 2023",
            planner=Widest(Dstack()),
            packer=Dstack(),
            dispatcher=duty,
            admission=Deadline(),
            scaler=fixed,
            cold_start=copy,
            eviction=least_recently_used,
        ),
        System(
            name="temporal",
            source="D-STACK section 6, temporal sharing",
            planner=Widest(whole),
            packer=whole,
            dispatcher=duty,
            admission=everyone,
            scaler=fixed,
            cold_start=copy,
            eviction=least_recently_used,
        ),
    )
}


def system(name: str) -> System:
    """The catalog's row of that name.

    Raises:
        KeyError: no such row; the message lists what there is.
    """
    if name not in CATALOG:
        near = get_close_matches(name, CATALOG, n=1)
        hint = f" (did you mean {near[0]}?)" if near else ""
        raise KeyError(f"unknown system '{name}'{hint}; known: {', '.join(CATALOG)}")
    return CATALOG[name]
