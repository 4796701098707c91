"""Every answer to more models than memory, by name."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from types import MappingProxyType
from typing import Final

from interlace.policy.cold_policy import ColdPolicy
from interlace.policy.cold_starts import deepplan
from interlace.policy.cold_starts.deepplan import copy, pipeswitch
from interlace.policy.cold_starts.frontier import lasting
from interlace.policy.load_order import (
    by_deadline,
    by_worth,
    first_come,
    hottest_missing,
    least_recently_used,
    on_demand,
)

#: As the papers' servers have it: whole models, the longest idle leaves, as requests come.
_published = partial(ColdPolicy, eviction=least_recently_used, prefetch=on_demand, order=first_come)

_ROWS: Final = (
    _published("copy", copy),
    _published("pipeswitch", pipeswitch),
    _published("deepplan-dha", deepplan.direct_host_access),
    _published("deepplan-pt", deepplan.parallel_transmission),
    _published("deepplan", deepplan.both),
    _published("deepplan-printed", deepplan.as_printed),
    ColdPolicy("interlace", lasting, by_worth, hottest_missing, by_deadline),
)

COLD_POLICIES: Final[Mapping[str, ColdPolicy]] = MappingProxyType({row.name: row for row in _ROWS})
