"""The gathering bound: held against the best that a clairvoyant can do, and against the engine."""

from dataclasses import replace
from math import exp, factorial

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from interlace.core.gpu_kinds import GPU_KINDS
from interlace.core.hardware import Gpu
from interlace.core.plan import Demand
from interlace.core.profile import LatencyPoint, Profile
from interlace.packing.bounds import LowerBound, lower_bound
from interlace.packing.bounds.gathering import gap_sums
from interlace.packing.bounds.rates import Floats
from tests.oracles.clairvoyant import fewest_drops

WHOLE = replace(GPU_KINDS["v100"], shares_pct=(100,))
HALVES = replace(GPU_KINDS["v100"], shares_pct=(50, 100))
BATCHES = range(1, 33)


def profile(
    fixed_ms: float, row_ms: float, slower: float, shares: tuple[int, ...], largest: int = 32
) -> Profile:
    """A batch of b takes fixed + row x b on the whole, ``slower`` times that on a smaller share."""
    points = {}
    for share in shares:
        for batch in range(1, largest + 1):
            ms = (fixed_ms + row_ms * batch) * (1.0 if share == 100 else slower)
            points[batch, share] = LatencyPoint(ms, ms, ms, 1)
    return Profile("m", "d", "v100", 10**6, 10**5, points)


def bound(one: Demand, known: Profile, gpu: Gpu = WHOLE) -> LowerBound:
    return lower_bound([one], gpu, {"m": known})


def cheapest_partition(
    times_ms: Floats, one: Demand, known: Profile, gpu: Gpu, price: float
) -> tuple[float, int]:
    """The least accelerators x ms, and what is given up at ``price`` each, on accelerators without
    end: batches of successive requests, each in time. A real schedule cannot be cheaper than the
    best of these, but for batches around batches; the bound must be below any of them."""
    count = len(times_ms)
    types = [(share / 100.0, [known.points[b, share].p95_ms for b in BATCHES])
             for share in gpu.shares_pct]  # fmt: skip
    cost, lost = np.zeros(count + 1), np.zeros(count + 1, int)
    for first in range(count - 1, -1, -1):
        best, given_up = cost[first + 1] + price, lost[first + 1] + 1
        for worth, table in types:
            for rows, ms in enumerate(table[: count - first], 1):
                if times_ms[first + rows - 1] - times_ms[first] > one.slo_ms - ms:
                    break
                if worth * ms + cost[first + rows] < best:
                    best, given_up = worth * ms + cost[first + rows], lost[first + rows]
        cost[first], lost[first] = best, given_up
    return float(cost[0]) - price * int(lost[0]), int(lost[0])


@settings(max_examples=25, deadline=None)
@given(
    fixed_ms=st.floats(0.2, 8.0),
    row_ms=st.floats(0.05, 1.0),
    slower=st.floats(1.0, 2.2),
    multiple=st.floats(1.1, 12.0),
    per_ms=st.floats(0.01, 2.0),
    cv=st.sampled_from((0.3, 1.0, 2.0)),
    attainment=st.sampled_from((0.9, 0.99, 0.999)),
    seed=st.integers(0, 99),
)
def test_nothing_that_can_be_done_costs_less(
    fixed_ms: float, row_ms: float, slower: float, multiple: float, per_ms: float, cv: float,
    attainment: float, seed: int,
) -> None:  # fmt: skip
    known = profile(fixed_ms, row_ms, slower, (50, 100))
    slo_ms = multiple * (fixed_ms + row_ms)
    one = Demand("m", 1000.0 * per_ms, slo_ms, 32, attainment=attainment, cv=cv)
    found = bound(one, known, HALVES)
    gaps = np.random.default_rng(seed).gamma(cv**-2, cv**2 / per_ms, 1500)
    times_ms = np.cumsum(gaps)
    length_ms = len(gaps) / per_ms
    allowed = (1.0 - attainment) * len(gaps)
    # The Lagrangian at any price is at most what the best that gives up no more costs.
    done = [cheapest_partition(times_ms, one, known, HALVES, price) for price in (1e9, 5.0, 1.0)]
    least = min(cost / length_ms for cost, lost in done if lost <= allowed)
    chance = 5.0 * cv / len(gaps) ** 0.5
    assert found.gathering.accelerators <= least * (1.0 + chance)
    assert found.gathering.accelerators >= found.configuration.accelerators * (1 - 1e-12)


@pytest.mark.parametrize("multiple", [2.1, 2.5, 3.0, 4.0, 6.0, 10.0])
@pytest.mark.parametrize(("fixed_ms", "row_ms"), [(2.0, 0.1), (5.0, 0.5)])
def test_a_clairvoyant_on_one_accelerator_gives_up_too_many_where_the_bound_is_above_it(
    multiple: float, fixed_ms: float, row_ms: float
) -> None:
    slo_ms = multiple * (fixed_ms + row_ms)
    largest = int((slo_ms - fixed_ms) / row_ms + 1e-9)
    known = profile(fixed_ms, row_ms, 1.0, (100,), largest)
    low, high = 1e-3, 2.0 / row_ms
    for _ in range(20):  # the rate at which the bound says one and a tenth
        middle = (low + high) / 2
        above = bound(Demand("m", 1000.0 * middle, slo_ms, largest), known).best.accelerators > 1.1
        low, high = (low, middle) if above else (middle, high)
    times_ms = np.cumsum(np.random.default_rng(1).exponential(1.0 / high, 4000))
    assert fewest_drops(times_ms, row_ms, fixed_ms, slo_ms, 40) > 40, f"1 % at {high}/ms"


#: One model of L(b) = 2 + 0.1 b ms on one accelerator, Poisson: what the engine keeps to 99 % at an
#: SLO of so many times L(1), in requests/s.
KEPT = {2.1: 489, 2.3: 1_127, 2.5: 1_737, 3: 3_003, 4: 4_627, 6: 5_827, 10: 5_997, 20: 6_172}


@pytest.mark.parametrize(("multiple", "rps"), KEPT.items())
def test_what_the_engine_keeps_on_one_needs_at_most_one(multiple: float, rps: float) -> None:
    known = profile(2.0, 0.1, 1.0, (100,))
    found = bound(Demand("m", rps, multiple * 2.1, 32), known)
    assert found.gathering.accelerators <= 1.0
    if multiple <= 3:
        assert found.gathering.accelerators >= 1.5 * found.area.accelerators, "much sharper"
        assert found.gathering.accelerators >= 0.4


@settings(max_examples=40, deadline=None)
@given(
    fixed_ms=st.floats(0.2, 8.0),
    multiple=st.floats(1.1, 12.0),
    per_s=st.floats(1.0, 3000.0),
    cv=st.sampled_from((0.3, 1.0, 4.0)),
    more=st.floats(1.05, 3.0),
)
def test_a_longer_slo_needs_no_more_and_a_higher_rate_no_less(
    fixed_ms: float, multiple: float, per_s: float, cv: float, more: float
) -> None:
    """To within the steps in which its parameters are searched."""
    known = profile(fixed_ms, 0.3, 1.6, (50, 100))
    one = Demand("m", per_s, multiple * (fixed_ms + 0.3), 32, cv=cv)
    here = bound(one, known, HALVES).gathering
    longer = bound(replace(one, slo_ms=more * one.slo_ms), known, HALVES).gathering
    faster = bound(replace(one, rows_per_s=more * per_s), known, HALVES).gathering
    assert longer.accelerators <= here.accelerators * 1.1
    assert faster.accelerators >= here.accelerators / 1.1
    paid = here.price["m"] * per_s
    assert paid <= here.accelerators * (1 + 1e-9), "one more costs no more than the mean"


def test_rare_requests_each_take_a_batch_of_their_own() -> None:
    """As many accelerators x ms as one row takes, of those that are not given up."""
    known = profile(2.0, 0.1, 1.0, (100,))
    found = bound(Demand("m", 0.01, 20.0, 32), known)
    assert found.area.accelerators == pytest.approx(0.01 * 0.99 * (5.2 / 32) / 1000)
    assert 0.9 * 0.01 * 2.1 / 1000 <= found.gathering.accelerators <= 0.99 * 0.01 * 2.1 / 1000


def test_arrivals_of_little_variation_allow_what_their_count_does() -> None:
    """Gaps of 10 ms within 40 - L(b): batches of 4 at most span 30 ms, and 40 - 2.4 is enough."""
    known = profile(2.0, 0.1, 1.0, (100,))
    found = bound(Demand("m", 100.0, 40.0, 32, attainment=0.9999, cv=0.1), known)
    assert found.gathering.accelerators == pytest.approx(0.1 * 2.4 / 4, rel=0.1)


@pytest.mark.parametrize(("cv", "costs"), [(0.3, 2.63), (1.0, 2.08), (2.0, 1.47)])
def test_it_is_near_what_a_clairvoyant_pays(cv: float, costs: float) -> None:
    """Full batches cost 0.91 a request; a clairvoyant 2.93, 2.45 and 1.87 (``cheapest_partition``,
    at its best price, of 8,000 arrivals)."""
    known = profile(3.5, 0.8, 1.0, (100,))
    found = bound(Demand("m", 20.0, 58.2, 32, cv=cv), known)
    assert found.gathering.accelerators / 0.02 == pytest.approx(costs, rel=0.02)


@pytest.mark.parametrize("cv", [0.3, 1.0, 2.5])
def test_sums_of_gaps_are_bounded_closely(cv: float) -> None:
    sums = gap_sums(cv, 30, 40.0)
    random = np.random.default_rng(0)
    drawn = random.gamma(cv**-2, cv**2, (40_000, 30)).cumsum(axis=1)
    for gaps in (1, 4, 17, 30):
        for mean_gaps in (0.3, 2.0, 11.0, 29.0):
            known = float(sums.at_most(np.array([float(gaps)]), np.array([mean_gaps]))[0])
            seen = float((drawn[:, gaps - 1] <= mean_gaps).mean())
            assert seen - 0.01 <= known <= seen * 1.06 + 0.015
    if cv == 1.0:
        exactly = 1.0 - sum(exp(-2.0) * 2.0**k / factorial(k) for k in range(4))
        got = float(sums.at_most(np.array([4.0]), np.array([2.0]))[0])
        assert exactly <= got <= exactly * 1.05
    assert sums.at_most(np.array([0.0, 3.0]), np.array([-1.0, 99.0])).tolist() == [0.0, 1.0]
