"""Our slowdown: what profiles tell of any two models, what one of them showed, what both did."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

import numpy as np

from interlace.perf.interference import CoRunner
from interlace.perf.slowdown.base import ObservationTable, RidgeBase, features
from interlace.perf.slowdown.maps import ExcessMap, best_noise, fit_maps, place, predicted
from interlace.perf.slowdown.observation import Observation, Solos

#: Variance of one observation over that of its pair's map: measurements hardly err.
_PAIR_NOISE: Final = 0.01

#: The model that is slowed, and its neighbour.
Pair = tuple[str, str]


@dataclass(frozen=True, slots=True, eq=False)
class LearnedInterference:
    """1 + the excesses of all neighbours, of which none is below 0; each is the sum of three parts.

    ``base``, for strangers too: how long the two batches are (one is slowed less the longer it is
    beside its neighbour; below equal length that makes no difference), the ratios of the L2 and of
    the DRAM that they use, and how evenly the accelerator is cut. ``runners``: how the model that
    is slowed departs from it beside anyone, which carries over to unseen pairs; empty unless that
    helped on pairs left out of training. ``pairs``: how a known pair departs from both.

    No weight, penalty or map comes from what it is tested on, but the base's features were chosen
    on 750 pairs of four models on a V100. Chosen without the pairs to be predicted, features
    like these are no better there than one constant.
    """

    base: RidgeBase
    runners: Mapping[str, ExcessMap]
    pairs: Mapping[Pair, ExcessMap]
    solos: Solos
    #: Excesses that were asked for: a simulation asks for the same few again and again.
    _asked: dict[tuple[CoRunner, CoRunner], float] = field(
        default_factory=dict, init=False, repr=False
    )

    def __call__(self, runner: CoRunner, neighbours: Sequence[CoRunner]) -> float:
        total = 1.0
        for one in neighbours:
            if (excess := self._asked.get((runner, one))) is None:
                excess = self._asked[runner, one] = max(0.0, self._excess(runner, one))
            total += excess
        return total

    def _excess(self, runner: CoRunner, one: CoRunner) -> float:
        total = float(self.base.excess(np.array([features(runner, one, self.solos)]))[0])
        at = np.array([place(runner, one)])
        for known in (self.runners.get(runner.model), self.pairs.get((runner.model, one.model))):
            if known:
                total += float(known.excess(at)[0])
        return total


def fit_learned(seen: Sequence[Observation], solos: Solos) -> LearnedInterference:
    """The model from observations; what it shrinks by is best on groups of models left out in turn.

    Maps are made of observations with one neighbour.

    Raises:
        ValueError: nothing was seen.
    """
    if not seen:
        raise ValueError("a slowdown cannot be learned from no observation: measure some pairs")
    rows = ObservationTable(seen, solos)
    base = rows.fit(np.ones(len(seen), bool), rows.best_penalty())
    single = [i for i, one in enumerate(seen) if len(one.neighbours) == 1]
    if not single:
        return LearnedInterference(base, {}, {}, solos)
    left = (rows.excess - rows.predicted(base))[single]
    beside = [(seen[i].runner, seen[i].neighbours[0]) for i in single]
    places = np.array([place(*both) for both in beside])
    slowed = [runner.model for runner, _ in beside]
    noise = best_noise(slowed, places, left, [seen[i].models for i in single])
    runners = {} if noise is None else fit_maps(slowed, places, left, noise)
    left = left - predicted(runners, slowed, places)
    names = [(runner.model, one.model) for runner, one in beside]
    return LearnedInterference(base, runners, fit_maps(names, places, left, _PAIR_NOISE), solos)
