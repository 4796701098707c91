"""A system by the name that people give it."""

from __future__ import annotations

from dataclasses import replace

from interlace.core.user_errors import InputError
from interlace.policy.base import System
from interlace.policy.catalog import resolve


def system_of(system: str | System) -> System:
    """The system itself, or by name: as ``policy.catalog.resolve``, or ``A+B`` for A with the
    dispatcher of B.

    Raises:
        InputError: there is no such system; what there is.
    """
    if isinstance(system, System):
        return system
    first, _, other = system.partition("+")
    try:
        row = resolve(first.strip())
        if not other:
            return row
        return replace(row, name=system, dispatcher=resolve(other.strip()).dispatcher)
    except ValueError as error:
        raise InputError(str(error)) from None
