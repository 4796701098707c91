"""Features chosen without what they are tested on, on slowdowns with a known cause."""

from __future__ import annotations

import itertools
from collections.abc import Callable

from bench.planning.features import Table
from bench.planning.pairs import Measured
from bench.planning.prediction_errors import unseen_pairs
from interlace.core.profile import LatencyPoint, Profile
from interlace.perf.interference import CoRunner
from interlace.perf.slowdown.observation import Observation, from_profiles

MODELS = {"a": 1.0, "b": 2.0, "c": 5.0, "d": 12.0}
KEYS = tuple(itertools.product((1, 4), (40, 60)))


def _measured(truth: Callable[[CoRunner, CoRunner], float]) -> Measured:
    profiles = {
        name: Profile(
            name, "d", "k", 1, 1,
            {(b, s): LatencyPoint(ms * b * 60 / s, ms * b, ms * b, 9) for b, s in KEYS},
            pressure={(b, s): (0.01 * ms * b, 0.5 / ms) for b, s in KEYS},
        )
        for name, ms in MODELS.items()
    }  # fmt: skip
    seen = []
    for one, two in itertools.permutations(MODELS, 2):
        for (batch, share), other in itertools.product(KEYS, (1, 4)):
            runner, beside = CoRunner(one, batch, share), CoRunner(two, other, 100 - share)
            seen.append(Observation(runner, (beside,), truth(runner, beside)))
    return Measured("made", seen, from_profiles(profiles))


def test_the_cause_is_chosen_and_tells_of_unseen_pairs() -> None:
    made = _measured(lambda runner, _: 1.1 + 0.5 * (runner.share_pct / 100 - 0.5))
    table = Table(made)
    assert table.chosen(range(len(made.seen))).features == (12,)  # the share
    assert table.errors(unseen_pairs(made.seen), choose=True).r2 > 0.99


def test_without_a_cause_nothing_is_chosen() -> None:
    made = _measured(lambda _runner, _other: 1.25)
    table = Table(made)
    assert table.chosen(range(len(made.seen))).features == ()
    assert table.errors(unseen_pairs(made.seen), choose=True).p95 < 1e-12
