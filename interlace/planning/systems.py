"""A system by the name that people give it."""

from __future__ import annotations

from dataclasses import replace

from interlace.core.user_errors import InputError
from interlace.policy.base import System
from interlace.policy.catalog import resolve


def system_of(system: str | System) -> System:
    """The system itself, or by name: a row of the catalog, or ``A+B`` for A with B's dispatcher.

    Raises:
        InputError: there is no such row; what there is.
    """
    if isinstance(system, System):
        return system
    first, _, other = system.partition("+")
    try:
        row = resolve(first.strip())
        if not other:
            return row
        return replace(row, name=system, dispatcher=resolve(other.strip()).dispatcher)
    except KeyError as error:
        raise InputError(str(error.args[0])) from None
