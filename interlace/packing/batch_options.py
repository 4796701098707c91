"""What each model could do in a partition of one share: its batches, their times and capacities."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Final

import numpy as np
import numpy.typing as npt

from interlace.core.plan import Demand
from interlace.packing.queueing import Floats
from interlace.perf.latency import Curve, Surface

Ints = npt.NDArray[np.int64]

#: A promise to all is one to all but so many.
_LEAST_LOSS: Final = 1e-5
#: Parts of a rate that are equal on paper.
_ROUNDING: Final = 1e-3


@dataclass(frozen=True, slots=True)
class DemandArrays:
    """The models to be placed, as arrays over models: what does not depend on the share.

    ``replicas`` is how many partitions are taken to share each model's queue.
    """

    rows_per_s: Floats
    slo_ms: Floats
    attainment: Floats
    cv: Floats
    replicas: Floats

    def elsewhere(self, models: Ints, rows_per_s: Floats) -> Floats:
        """1 for models that are asked for more than that, which other partitions serve; else 0."""
        more: Floats = (rows_per_s < self.rows_per_s[models] * (1.0 - _ROUNDING)).astype(float)
        return more

    @property
    def loss(self) -> Floats:
        """The part of each model's requests that may be late where others are in the way.

        Another host of it may be free then: of n hosts, (1 + n) / 2 have to be late together.
        """
        late: Floats = np.maximum(1.0 - self.attainment, _LEAST_LOSS) ** (
            2.0 / (1.0 + self.replicas)
        )
        return late


def demand_arrays(demand: Sequence[Demand], replicas: Floats | None = None) -> DemandArrays:
    """The demand as arrays; one replica each unless told otherwise."""
    return DemandArrays(
        np.array([d.rows_per_s for d in demand], float),
        np.array([d.slo_ms for d in demand], float),
        np.array([d.attainment for d in demand], float),
        np.array([d.cv for d in demand], float),
        np.ones(len(demand)) if replicas is None else replicas,
    )


@dataclass(frozen=True, slots=True)
class BatchOptions:
    """Batches (models x choices) and their latency in ms at one share; infinite where not legal.

    ``largest`` is each model's largest batch, be it longer than the SLO.
    """

    share_pct: int
    rows: Floats
    latency_ms: Floats
    largest: Floats

    @property
    def last(self) -> Ints:
        """The index of each model's largest legal batch; -1 where none is."""
        found: Ints = np.isfinite(self.latency_ms).sum(axis=1) - 1
        return found

    @property
    def limits(self) -> Floats:
        """Models x choices: the batch by which admission counts those that wait.

        A model that may take all that fits is counted by its largest batch (``limit_rows``).
        """
        takes_all = np.arange(self.rows.shape[1]) == self.last[:, None]
        found: Floats = np.where(takes_all, self.largest[:, None], self.rows)
        return found

    def choice(self, model: int, batch: int) -> int | None:
        """The index of a batch among a model's choices, if it is legal."""
        known = (self.rows[model] == batch) & np.isfinite(self.latency_ms[model])
        return int(known.argmax()) if known.any() else None


def batch_options(
    demand: Sequence[Demand], surfaces: Sequence[Surface], share_pct: int
) -> BatchOptions:
    """The choices at one share."""
    alike: dict[tuple[tuple[int, ...], int], list[int]] = {}
    curves: list[Curve] = [()] * len(demand)
    for index, (one, latency) in enumerate(zip(demand, surfaces, strict=True)):
        if share_pct >= latency.shares_pct[0]:
            curve = curves[index] = latency.at_share(share_pct)
            most = min(one.max_batch, latency.measured_rows(share_pct))
            alike.setdefault((tuple(b for b, _ in curve), most), []).append(index)
    widest = max((len(batches(most)) for _, most in alike), default=1)
    rows = np.ones((len(demand), widest))
    latency_ms = np.full((len(demand), widest), np.inf)
    largest = np.ones(len(demand))
    for (measured, most), models in alike.items():
        asked = batches(most)
        known = np.array([[ms for _, ms in curves[index]] for index in models])
        found = _on_lines(measured, known, asked)
        slo_ms = np.array([demand[m].slo_ms for m in models])[:, None]
        legal = np.logical_and.accumulate(found <= slo_ms, axis=1)
        here = np.array(models), slice(len(asked))
        largest[here[0]] = most
        rows[here], latency_ms[here] = np.where(legal, asked, 1), np.where(legal, found, np.inf)
    return BatchOptions(share_pct, rows, latency_ms, largest)


def _on_lines(measured: Sequence[int], known: Floats, asked: Sequence[int]) -> Floats:
    """L of the batches asked for (models x asked) between those measured (models x measured)."""
    at = np.array(measured, float)
    high = np.clip(np.searchsorted(at, asked), 0, len(at) - 1)
    low = np.where(at[high] <= asked, high, np.maximum(high - 1, 0))
    step = np.maximum(at[high] - at[low], 1.0)
    above = np.maximum(np.array(asked) - at[low], 0.0)
    found: Floats = known[:, low] + (known[:, high] - known[:, low]) * above / step
    return found


@cache
def batches(max_batch: int) -> tuple[int, ...]:
    """1, 2, 3, 4, 6, 8, 12, ... and the largest."""
    found = {max_batch}
    power = 1
    while power <= max_batch:
        found.update(b for b in (power, 3 * power // 2) if b <= max_batch)
        power *= 2
    return tuple(sorted(found))
