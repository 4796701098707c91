"""The traces that a scenario's models share: each is read, and dealt out, once."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from pathlib import Path

import numpy as np

from interlace.core.tables import TableError, did_you_mean
from interlace.sim.arrivals import Times
from interlace.sim.workload.files import azure_counts, azure_invocations, own_times
from interlace.sim.workload.mapping import Counts, drawn_day, folded
from interlace.sim.workload.recorded import BinnedCounts


class TraceFiles:
    """Traces by the names of their files in ``folder``, as long as this is kept."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._counts = cache(azure_counts)
        self._calls = cache(azure_invocations)
        self._times = cache(own_times)
        self.folded = cache(self._folded)

    def invocations(self, file: str) -> Mapping[str, Times]:
        """Of Azure Functions 2021, times in ms by function."""
        return self._calls(self.folder / file)

    def own_times(self, file: str) -> Mapping[str, Times]:
        """Of one's own, times in ms by model."""
        return self._times(self.folder / file)

    def function(self, file: str, name: str | None) -> BinnedCounts:
        """One function of Azure Functions 2019, the first without a name; 1 request/s on average.

        Raises:
            TableError: the file has none of that name.
        """
        counts = self._counts(self.folder / file)
        one = counts[chosen("function", name, counts, self.folder / file)]
        return folded(np.array([one]), 1, 1.0)[0]

    def _folded(self, file: str, parts: int, skip: int, drawn: int | None) -> list[BinnedCounts]:
        """Functions of Azure Functions 2019 by part; 1 request/s of all parts on average.

        Raises:
            TableError: nothing is left without the ``skip`` largest.
        """
        counts: Counts = np.array(list(self._counts(self.folder / file).values()))
        if skip >= len(counts):
            there = f"fewer than the {len(counts)} functions of {self.folder / file}"
            raise TableError("skip", str(skip), there)
        counts = counts[np.sort(np.argsort(-counts.sum(axis=1), kind="stable")[skip:])]
        return folded(counts if drawn is None else drawn_day(counts, drawn), parts, 1.0)


def chosen(key: str, name: str | None, names: Mapping[str, object], path: Path) -> str:
    """A name that is in a file; the first where none is asked for."""
    if name is None:
        return next(iter(names))
    if name not in names:
        hint = did_you_mean(name, names)
        raise TableError(key, repr(name), f"one of the {len(names)} of {path}{hint}")
    return name
