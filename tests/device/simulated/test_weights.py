"""Weights on a simulated accelerator: links are queues, and no layer runs before its weights."""

import itertools
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from interlace.core.hardware import Gpu
from interlace.core.loading import HostLinks, HostTier, LoadPlan, LoadStep, WeightPath
from interlace.core.messages import Evict, Fetch, WorkFinished
from interlace.core.profile import LayerProfile, Profile
from interlace.device.simulated.weights import SimulatedWeights, WeightLinks, WeightPiece
from interlace.perf.cold_start import HostMemory, layer_times, planned
from interlace.runtime.clock import SimClock

LAYERS = tuple(LayerProfile(str(index), 100, 2.0, 1.0, 3.0) for index in range(4))
PROFILE = Profile("a", "", "k", 400, 1, {}, layers=LAYERS)
GPU = Gpu("g0", "k", 2, 10**6, (100,), weights_bytes=600)
TRUTH = {"a": PROFILE, "b": replace(PROFILE, model="b")}


def plan_of(*paths: WeightPath, links: HostLinks = GPU.links) -> LoadPlan:
    steps = [LoadStep(layer.name, via) for layer, via in zip(LAYERS, paths, strict=True)]
    return planned(LAYERS, steps, links)


COPIED = plan_of(*[WeightPath.COPY] * 4)


class Stand:
    def __init__(self, gpu: Gpu = GPU) -> None:
        self.clock = SimClock()
        self.weights = SimulatedWeights(gpu, self.clock, TRUTH)
        for model in TRUTH:
            self.weights.loaded(model, "p")
        self.ended: list[tuple[float, WorkFinished]] = []

    def fetch(self, model: str, plan: LoadPlan = COPIED) -> None:
        self.weights.fetch(Fetch("g0", "p", model, plan), self.done)

    def done(self, finished: WorkFinished) -> None:
        self.ended.append((self.clock.now_ms(), finished))


@given(
    st.lists(st.sampled_from([WeightPath.COPY, WeightPath.HOST]), min_size=4, max_size=4),
    st.floats(0.0, 12.0),
)
def test_a_batch_waits_for_each_layers_weights(paths: list[WeightPath], after_ms: float) -> None:
    """Begun with the fetch it ends as the plan predicts; begun later, by no more than it must."""
    stand, plan = Stand(), plan_of(*paths)
    stand.fetch("a", plan)
    stand.clock.run(after_ms)
    takes_ms = stand.weights.takes_ms("a", 4.0)
    assert takes_ms is not None
    end_ms = after_ms
    for layer, step, times in zip(
        LAYERS, plan.steps, layer_times(LAYERS, plan.steps, GPU.links), strict=True
    ):
        arrives_ms = times.arrives_ms if step.via is WeightPath.COPY else 0.0
        run_ms = layer.run_host_ms if step.via is WeightPath.HOST else layer.run_ms
        end_ms = max(end_ms, arrives_ms) + run_ms
    assert after_ms + takes_ms == pytest.approx(end_ms)
    assert after_ms + takes_ms >= plan.end_ms - 1e-9


def test_without_its_weights_nothing_runs() -> None:
    stand = Stand()
    assert stand.weights.takes_ms("a", 4.0) is None
    stand.fetch("a")
    stand.clock.run(20.0)
    assert stand.weights.takes_ms("a", 4.0) == pytest.approx(4.0)
    stand.weights.evict(Evict("g0", "a", (3,)), stand.done)
    assert stand.weights.takes_ms("a", 4.0) is None
    assert stand.weights.held_bytes == 300


def test_what_is_held_and_on_its_way_is_within_the_budget() -> None:
    stand = Stand()
    stand.fetch("a")
    stand.fetch("b")
    stand.clock.run(20.0)
    failures = [one.failure.detail for _, one in stand.ended if one.failure]
    assert failures == ["no room for 400 bytes of b: 400 of 600 are held"]
    assert stand.weights.held_bytes == 400


def test_a_fetch_that_is_cancelled_ends_once_and_gives_everything_back() -> None:
    stand = Stand(replace(GPU, weights_bytes=800))
    stand.fetch("a")
    stand.fetch("b")
    stand.clock.run(3.0)
    stand.weights.cancel("a")
    stand.clock.run(50.0)
    (cancelled_ms, first), (ended_ms, second) = stand.ended
    assert first.failure is not None and first.failure.detail == "cancelled" and cancelled_ms == 3.0
    assert second.failure is None
    assert ended_ms == pytest.approx(4.0 + 8.0), "behind the layer that was being copied"
    assert stand.weights.held_bytes == 400


def test_what_comes_over_a_peer_is_passed_on() -> None:
    links = WeightLinks()
    pieces = [WeightPiece(0, "own", 2.0), WeightPiece(1, "peer", 2.0, 0.5)]
    pieces += [WeightPiece(2, "peer", 2.0, 3.0), WeightPiece(3, "peer", 2.0, 3.0)]
    flow = links.begin(pieces, 10.0)
    assert flow.arrives_ms == {0: 12.0, 1: 12.5, 2: 17.0, 3: 20.0}


@given(
    st.lists(
        st.tuples(
            st.floats(0.0, 20.0),
            st.lists(st.tuples(st.sampled_from("xy"), st.floats(0.1, 5.0)), min_size=1, max_size=4),
        ),
        min_size=1,
        max_size=5,
    ),
    st.data(),
)
def test_each_link_carries_a_piece_at_a_time(
    loads: list[tuple[float, list[tuple[str, float]]]], data: st.DataObject
) -> None:
    """In the order of begin; what is stopped delays nobody by more than the piece under way."""
    links = WeightLinks()
    flows = []
    for begin_ms, pieces in sorted(loads, key=lambda one: one[0]):
        made = [WeightPiece(i, link, copy_ms) for i, (link, copy_ms) in enumerate(pieces)]
        flows.append(links.begin(made, begin_ms))
    before = [dict(flow.arrives_ms) for flow in flows]
    stopped = data.draw(st.sampled_from(flows))
    links.stop(stopped, stopped.begin_ms + data.draw(st.floats(0.0, 10.0)))
    for flow, was in zip(flows, before, strict=True):
        if flow is not stopped:
            assert all(flow.arrives_ms[layer] <= was[layer] + 1e-9 for layer in was)
    for link in "xy":
        spans = sorted(
            (flow.arrives_ms[piece.layer] - piece.copy_ms, flow.arrives_ms[piece.layer])
            for flow in flows
            for piece in flow.pieces
            if piece.link == link
        )
        for (_, ended_ms), (began_ms, _) in itertools.pairwise(spans):
            assert began_ms >= ended_ms - 1e-9


#: A host that has room for one of two models, and a disk four times as slow as the link.
SMALL_HOST = replace(GPU, host=HostTier(memory_bytes=500, disk_bytes_per_ms=12.5))


def test_what_the_host_does_not_have_comes_from_its_disk() -> None:
    stand = Stand(SMALL_HOST)
    stand.fetch("a", plan_of(WeightPath.HOST, *[WeightPath.COPY] * 3))
    # Four reads of 8 ms, each before its copy; the layer that stays on the host is read as well.
    assert stand.weights.takes_ms("a", 4.0) == pytest.approx(32.0 + 2.0 + 1.0)
    stand.clock.run(100.0)
    stand.weights.evict(Evict("g0", "a", (1, 2, 3)), stand.done)
    stand.fetch("a")
    assert stand.weights.takes_ms("a", 4.0) == pytest.approx(2.0 + 3 * 2.0 + 1.0)
    stand.clock.run(200.0)
    stand.weights.evict(Evict("g0", "a", (0, 1, 2, 3)), stand.done)
    stand.fetch("b")
    assert stand.weights.takes_ms("b", 4.0) == pytest.approx(32.0 + 2.0 + 1.0)
    assert stand.weights.host is not None and not stand.weights.host.holds("a")


def test_a_copy_that_waits_for_the_disk_holds_up_nobody() -> None:
    links = WeightLinks()
    slow = links.begin([WeightPiece(0, "pcie", 2.0, read_ms=50.0)], 0.0)
    quick = links.begin([WeightPiece(0, "pcie", 2.0)], 0.0)
    behind = links.begin([WeightPiece(0, "other", 1.0, read_ms=50.0)], 0.0)
    assert (slow.end_ms, quick.end_ms, behind.end_ms) == (52.0, 4.0, 101.0)


def test_what_is_behind_a_load_that_is_given_up_elsewhere_ends_sooner() -> None:
    gpu = replace(GPU, links=replace(GPU.links, names=("pcie",)))
    one, other = Stand(gpu), Stand(replace(gpu, id="g1"))
    other.clock, other.weights._timer, other.weights.links = one.clock, one.clock, one.weights.links
    one.fetch("a")
    other.fetch("a")
    one.clock.run(3.0)
    one.weights.cancel("a")
    one.clock.run(100.0)
    assert [at_ms for at_ms, _ in other.ended] == [4.0 + 8.0]  # two layers of the first had begun


@given(st.lists(st.tuples(st.sampled_from("abcdef"), st.integers(1, 40)), max_size=60))
def test_the_host_never_has_more_than_fits_and_what_was_used_last(
    used: list[tuple[str, int]],
) -> None:
    sizes, memory = dict(reversed(used)), HostMemory(HostTier(60, 1.0))
    for place, (model, _) in enumerate(used):
        there = memory.holds(model)
        assert memory.use(model, sizes[model]) == there
        held = [name for name in sizes if memory.holds(name)]
        assert sum(sizes[name] for name in held) <= 60
        assert model in held
        recent = [name for name, _ in reversed(used[: place + 1])]
        assert set(dict.fromkeys(recent).keys()) >= set(held)
        assert held and set(held) == set(list(dict.fromkeys(recent))[: len(held)])
