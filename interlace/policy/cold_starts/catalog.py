"""Every answer to a cold start by name."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from interlace.policy.base import ColdStart
from interlace.policy.cold_starts import deepplan
from interlace.policy.cold_starts.frontier import frontier
from interlace.policy.cold_starts.whole import copy, pipeswitch

COLD_STARTS: Final[Mapping[str, ColdStart]] = MappingProxyType(
    {
        "copy": copy,
        "pipeswitch": pipeswitch,
        "deepplan-dha": deepplan.direct_host_access,
        "deepplan-pt": deepplan.parallel_transmission,
        "deepplan": deepplan.both,
        "interlace": frontier,
    }
)
