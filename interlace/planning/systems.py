"""A system by the name that people give it."""

from __future__ import annotations

import sys
from dataclasses import replace

from interlace.core.tables import did_you_mean
from interlace.core.user_errors import InputError
from interlace.policy.base import System
from interlace.policy.catalog import resolve
from interlace.policy.cold_policy import ColdPolicy
from interlace.policy.cold_starts.catalog import COLD_POLICIES


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
