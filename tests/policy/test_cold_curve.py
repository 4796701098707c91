"""What is kept first of a model, what brings the rest, and what is brought while a link is idle."""

from random import Random
from statistics import fmean

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bench.papers.deepplan.v100 import layers
from interlace.core.loading import HostLinks, WeightPath
from interlace.core.profile import LayerProfile
from interlace.perf.cold_start import layer_times
from interlace.policy.cold_curve import ColdCurve
from interlace.policy.cold_policy import Holding
from interlace.policy.cold_starts.catalog import COLD_POLICIES
from interlace.policy.cold_starts.deepplan import pipeswitch
from interlace.policy.cold_starts.frontier import lasting
from interlace.policy.load_order import hottest_missing, on_demand
from tests.policy.cold_starts.holdings import Held, blocks, held_models, whole
from tests.policy.cold_starts.layers import layer_lists

links = st.sampled_from([HostLinks(), HostLinks(1, 4096.0), HostLinks(takes_cores=True)])
rows = st.sampled_from([row.cold_start for row in COLD_POLICIES.values()])


@given(layer_lists(12), links, st.data())
def test_a_few_loads_make_it_warm_and_it_stays_so(
    layers: list[LayerProfile], links: HostLinks, data: st.DataObject
) -> None:
    curve = ColdCurve(data.draw(rows), layers, links)
    held = data.draw(st.frozensets(st.integers(0, len(layers) - 1)))
    for _ in layers:  # a plan that has less to copy may copy what a longer one leaves
        brought = curve.plan(held).brought
        if not brought:
            break
        assert not held.intersection(brought)
        held |= {*brought}
    assert curve.copied(held) == ()
    whole = frozenset(index for part in curve.parts for index in part.layers)
    assert curve.copied(whole) == () and curve.missing(whole) is None


@given(layer_lists(12), links, st.data())
def test_parts_leave_in_the_order_in_which_they_save_least(
    layers: list[LayerProfile], links: HostLinks, data: st.DataObject
) -> None:
    curve = ColdCurve(lasting, layers, links)
    held = data.draw(st.frozensets(st.integers(0, len(layers) - 1)))
    parts = curve.leaving(held)
    assert [one.worth_ms for one in parts] == sorted(one.worth_ms for one in parts)
    assert sorted(index for one in parts for index in one.layers) == sorted(held)
    missing = curve.missing(held)
    if missing is not None:
        part, plan = missing
        assert plan.brought == tuple(sorted(part.layers))
        assert not held.intersection(part.layers)
        assert all((plan.steps[index].via is WeightPath.KEEP) for index in held)


def test_a_warm_model_reads_no_more_from_the_host_than_what_a_copy_would_cost() -> None:
    """BERT's dense layers are read from the host only while execution waits for copies anyway."""
    bert = layers("bert_base")
    curve = ColdCurve(lasting, bert, HostLinks())
    held: frozenset[int] = frozenset()
    while brought := curve.copied(held):
        held |= {*brought}
    left = [one for index, one in enumerate(bert) if one.weights_bytes and index not in held]
    assert {one.kind for one in left} == {"Embedding"}
    assert curve.plan(held).end_ms <= 1.03 * sum(one.run_ms for one in bert)


def test_the_hottest_comes_while_there_is_room_and_for_what_is_worth_far_less() -> None:
    cold = Held("cold", blocks(), frozenset(), rate_rps=3.0)
    other = Held("other", blocks(), frozenset(), rate_rps=2.0)
    asked = hottest_missing(100, [other, cold], 0.0)
    assert asked is not None and asked[0] == "cold"
    assert asked[1].brought == (0,)
    assert hottest_missing(0, [cold, whole("resident", 2.0)], 0.0) is None
    for_less = hottest_missing(0, [cold, whole("resident", 0.5)], 0.0)
    assert for_less is not None and for_less[0] == "cold"
    assert hottest_missing(0, [cold, whole("pinned", 0.1, leaves=False)], 0.0) is None
    assert on_demand(10**9, [cold], 0.0) is None


@settings(max_examples=50)
@given(held_models(), st.integers(0, 10_000))
def test_what_is_fetched_unasked_is_not_there_and_not_on_its_way(
    holdings: list[Holding], free_bytes: int
) -> None:
    asked = hottest_missing(free_bytes, holdings, 9.0)
    if asked is not None:
        one = next(holding for holding in holdings if holding.model == asked[0])
        assert not one.held.intersection(asked[1].brought)


@pytest.mark.parametrize("model", ["bert_base", "resnet50", "gpt2"])
def test_with_every_time_off_by_a_fifth_ours_is_not_slower_than_pipeswitch(model: str) -> None:
    drawn = Random(model)
    found = layers(model)
    ours, theirs = (way(found, HostLinks()).steps for way in (lasting, pipeswitch))
    ratios = []
    for _ in range(40):
        true = [
            LayerProfile(
                one.name,
                one.weights_bytes,
                *(time * drawn.uniform(0.8, 1.2) for time in (one.copy_ms, one.run_ms)),
                one.run_host_ms * drawn.uniform(0.8, 1.2),
                one.kind,
            )
            for one in found
        ]
        times = [layer_times(true, steps, HostLinks())[-1].ends_ms for steps in (ours, theirs)]
        ratios.append(times[0] / times[1])
    assert max(ratios) <= 1.0 and fmean(ratios) < 0.99
