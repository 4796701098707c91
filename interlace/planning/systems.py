"""A system by the name that people give it."""

from __future__ import annotations

import sys
from dataclasses import replace

from interlace.core.user_errors import InputError
from interlace.policy.base import System
from interlace.policy.catalog import resolve


def system_of(system: str | System) -> System:
    """The system itself, or by name: as ``policy.catalog.resolve``, or ``A+B`` for A with the
    dispatcher of B. Modules are looked for in the current folder, too, as ``python -m`` does.

    Raises:
        InputError: there is no such system; what there is, or what is wrong with it.
    """
    if isinstance(system, System):
        return system
    if ":" in system and "" not in sys.path:
        sys.path.insert(0, "")
    first, _, other = system.partition("+")
    try:
        row = resolve(first.strip())
        if not other:
            return row
        return replace(row, name=system, dispatcher=resolve(other.strip()).dispatcher)
    except ValueError as error:
        raise InputError(str(error)) from None
