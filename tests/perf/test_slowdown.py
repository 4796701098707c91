"""Slowdown learned from observations, on known and unseen pairs, beside one constant."""

import itertools
from collections.abc import Callable, Sequence
from math import inf

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from interlace.core.profile import LatencyPoint, Profile
from interlace.perf.interference import ConstantFactor, CoRunner, Interference
from interlace.perf.slowdown import (
    FromProfiles,
    Observation,
    features,
    fit_learned,
    from_profiles,
)

MODELS = {"a": 1.0, "b": 2.0, "c": 5.0, "d": 12.0}
SHARES = (20, 50, 80)
BATCHES = (1, 4, 16)


def _solos() -> FromProfiles:
    profiles = {}
    for model, row_ms in MODELS.items():
        keys = list(itertools.product(BATCHES, SHARES))
        times = {(b, s): row_ms * (1 + b / 4) * 100 / s for b, s in keys}
        points = {key: LatencyPoint(ms, ms, ms, 9) for key, ms in times.items()}
        pressure = {(b, s): (0.05 * b * s / 100 / row_ms, 0.02 * row_ms * s / 100) for b, s in keys}
        profiles[model] = Profile(model, "d", "k", 1, 1, points, pressure=pressure)
    return from_profiles(profiles)


SOLOS = _solos()


def _linear(runner: CoRunner, neighbours: Sequence[CoRunner]) -> float:
    """gpulet's model (section 4.4): linear in the L2 and DRAM use of both."""
    each = [SOLOS(one).pressure or (0.0, 0.0) for one in (runner, *neighbours)]
    (l2, dram), others = each[0], each[1:]
    theirs = sum(0.5 * l2 + 0.8 * dram for l2, dram in others)
    return max(1.0, 1.02 + 0.1 * l2 - 0.1 * dram + theirs) if others else 1.0


def _seen(truth: Interference) -> list[Observation]:
    found = []
    for one, two in itertools.permutations(MODELS, 2):
        for batch, other, share in itertools.product(BATCHES, BATCHES, SHARES):
            runner, beside = CoRunner(one, batch, share), (CoRunner(two, other, 100 - share),)
            found.append(Observation(runner, beside, truth(runner, beside)))
    return found


def _ours(seen: Sequence[Observation]) -> Interference:
    return fit_learned(seen, SOLOS)


def _mean(seen: Sequence[Observation]) -> Interference:
    return ConstantFactor(sum(one.slowdown for one in seen) / len(seen))


def _pair(one: Observation) -> frozenset[str]:
    return one.models


def _batches(one: Observation) -> int:
    """One of five groups by the batches that ran together: every pair of models is in each."""
    together = sorted((r.model, r.batch, r.share_pct) for r in (one.runner, *one.neighbours))
    return sum(value * 7919 for model, b, s in together for value in (ord(model), b, s)) % 5


def _errors(
    seen: Sequence[Observation],
    group: Callable[[Observation], object],
    fit: Callable[[Sequence[Observation]], Interference],
) -> np.ndarray:
    """Relative errors of latency, each group predicted from the others."""
    errors = []
    for left in {group(one) for one in seen}:
        model = fit([one for one in seen if group(one) != left])
        out = [one for one in seen if group(one) == left]
        errors += [abs(model(o.runner, o.neighbours) / o.slowdown - 1.0) for o in out]
    return np.array(errors)


def test_pressure_comes_from_the_profile() -> None:
    def l2(batch: int, share_pct: int) -> float:
        pressure = SOLOS(CoRunner("b", batch, share_pct)).pressure
        assert pressure is not None
        return pressure[0]

    assert l2(4, 50) == pytest.approx(0.05)
    # l2 is 0.05 b s / 100 / row_ms: on lines between measured batches, and between shares.
    assert l2(5, 50) == pytest.approx(0.0625)
    assert l2(4, 65) == pytest.approx(0.065)
    assert l2(99, 99) == pytest.approx(0.05 * 16 * 0.8 / 2)  # as at the last
    bare = from_profiles(
        {"m": Profile("m", "d", "k", 1, 1, {(1, 50): LatencyPoint(2.0, 2.0, 2.0, 9)})}
    )
    assert bare(CoRunner("m", 1, 50)) == (2.0, None)


def test_alone_nobody_is_slowed() -> None:
    assert fit_learned(_seen(_linear), SOLOS)(CoRunner("a", 4, 50), ()) == 1.0


def _lengths(runner: CoRunner, neighbours: Sequence[CoRunner]) -> float:
    own = SOLOS(runner).alone_ms
    return 1.0 + sum(0.2 * min(1.0, SOLOS(n).alone_ms / own) for n in neighbours)


def test_ours_carries_over_to_unseen_pairs_where_lengths_matter() -> None:
    seen = _seen(_lengths)
    ours, flat = _errors(seen, _pair, _ours), _errors(seen, _pair, _mean)
    assert np.quantile(ours, 0.9) < 0.3 * np.quantile(flat, 0.9)


def test_without_anything_to_learn_ours_is_the_constant() -> None:
    # A slowdown that nothing in the profiles tells: each pair has one of its own.
    def odd(runner: CoRunner, neighbours: Sequence[CoRunner]) -> float:
        return 1.0 + 0.05 * (hash_of(runner.model) ^ hash_of(neighbours[0].model))

    def hash_of(name: str) -> int:
        return {"a": 0, "b": 1, "c": 2, "d": 3}[name]

    seen = _seen(odd)
    ours, flat = _errors(seen, _pair, _ours), _errors(seen, _pair, _mean)
    assert ours.mean() <= flat.mean() * 1.15
    assert np.quantile(_errors(seen, _batches, _ours), 0.9) < 0.02


def _sensitive(runner: CoRunner, neighbours: Sequence[CoRunner]) -> float:
    """A slowdown of the runner's own, whoever is beside it."""
    own = {"a": 0.9, "b": 0.1, "c": 0.5, "d": 0.2}[runner.model]
    return 1.0 + own / runner.batch * len(neighbours)


def test_what_a_model_showed_carries_over_to_unseen_pairs() -> None:
    seen = _seen(_sensitive)
    assert fit_learned(seen, SOLOS).runners
    ours, flat = _errors(seen, _pair, _ours), _errors(seen, _pair, _mean)
    assert np.quantile(ours, 0.9) < 0.5 * np.quantile(flat, 0.9)


def test_a_model_without_a_slowdown_of_its_own_has_no_map() -> None:
    # Only the pair matters, and the excesses of each runner are the same sum over its neighbours.
    def crossed(runner: CoRunner, neighbours: Sequence[CoRunner]) -> float:
        apart = "abcd".index(runner.model) ^ "abcd".index(neighbours[0].model)
        return 1.0 + 0.1 * apart

    assert not fit_learned(_seen(crossed), SOLOS).runners


@settings(max_examples=25, deadline=None)
@given(st.lists(st.floats(0.8, 5.0), min_size=6, max_size=6), st.integers(1, 64))
def test_another_neighbour_never_helps(slowdowns: list[float], batch: int) -> None:
    pairs = list(itertools.permutations(MODELS, 2))[:6]
    seen = [
        Observation(CoRunner(one, 4, 20), (CoRunner(two, 4, 80),), slowdown)
        for (one, two), slowdown in zip(pairs, slowdowns, strict=True)
    ]
    learned, runner = fit_learned(seen, SOLOS), CoRunner("a", batch, 20)
    one, two = CoRunner("b", 4, 20), CoRunner("d", batch, 50)
    alone, both = learned(runner, (one,)), learned(runner, (one, two))
    assert 1.0 <= alone <= both < inf


def test_neighbours_add_up() -> None:
    learned = fit_learned(_seen(_lengths), SOLOS)
    runner = CoRunner("a", 4, 20)
    one, two = CoRunner("b", 4, 20), CoRunner("c", 4, 50)
    both = learned(runner, (one, two)) - 1.0
    assert both == pytest.approx(learned(runner, (one,)) + learned(runner, (two,)) - 2.0)


def test_nothing_seen_is_said() -> None:
    with pytest.raises(ValueError, match="measure some pairs"):
        fit_learned([], SOLOS)


def test_what_only_one_of_two_has_measured_counts_as_equal() -> None:
    """A profile without counters leans on memory no less than others: nobody knows how much."""
    solos = _solos()
    bare = FromProfiles(solos.surfaces, {**solos.pressures, "b": {}})
    hungry, other = CoRunner("d", 16, 50), CoRunner("b", 4, 50)
    seen = [
        Observation(one, (two,), 1.1 + 0.05 * (one.model < two.model))
        for one, two in itertools.permutations([CoRunner(m, 4, 50) for m in "acd"], 2)
    ]
    assert features(hungry, other, bare)[1:3] == features(other, hungry, bare)[1:3] == (0.0, 0.0)
    found = [fit_learned(seen, bare)(hungry, (other,)), fit_learned(seen, bare)(other, (hungry,))]
    assert all(1.0 <= one <= 1.3 for one in found)
