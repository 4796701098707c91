"""Fleets in virtual time: what is true of every run, whatever is lost."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from interlace.core.hardware import Fleet
from interlace.core.messages import Command, CreatePartition, Event, ReleasePartition, WorkFinished
from interlace.core.node import NodeDescription
from interlace.core.plan import Demand, Partition, Slot
from interlace.core.request import Outcome
from interlace.core.user_errors import InputError
from interlace.engine.engine import Engine
from interlace.fleet.simulation.run import FleetRecord, fleet_report, simulate_fleet
from interlace.fleet.simulation.scenario import (
    Delays,
    FleetSimulation,
    Loss,
    LossKind,
    RateChange,
    parse_loss,
)
from interlace.policy.catalog import resolve
from interlace.routing.routes import RoutingLimits
from interlace.sim.arrivals import Gamma, merge_arrivals
from interlace.testing.dispatcher_laws import RunLog
from interlace.testing.worlds import FREE, line_profile
from tests.fleet.test_controller import planned_by

MODELS = ("m", "k", "l")
PROFILES = {name: line_profile(name, 2.0, 1.0) for name in MODELS}


def scenario(
    *losses: Loss,
    rate_rps: float = 200.0,
    seconds: float = 4.0,
    nodes: int = 3,
    routers: int = 2,
    delays: Delays | None = None,
    models: Sequence[str] = MODELS,
) -> FleetSimulation:
    gpus = tuple(replace(FREE, id=f"gpu{i}", memory_bytes=10**9) for i in range(2))
    return FleetSimulation(
        resolve("interlace"),
        tuple(NodeDescription(f"n{i}", f"z{i}", 1, "", True, gpus) for i in range(nodes)),
        tuple(Demand(name, rate_rps, 50.0) for name in models),
        {FREE.kind: PROFILES},
        {FREE.kind: PROFILES},
        merge_arrivals({name: Gamma(rate_rps, 1.0) for name in models}, seconds, 0),
        routers=routers,
        losses=losses,
        delays=delays or Delays(),
        warm_ms=3000.0,
        plan_ms=100.0,
    )


def losses() -> st.SearchStrategy[list[Loss]]:
    one = st.builds(
        Loss,
        st.sampled_from(["n0", "n1", "n2"]),
        st.floats(0.0, 2000.0),
        st.sampled_from(LossKind),
        st.sampled_from([200.0, 900.0, float("inf")]),
    )
    return st.lists(one, max_size=3, unique_by=lambda loss: loss.node)


class Shares:
    """Watches what is cut of each accelerator of a node."""

    def __init__(self) -> None:
        self.cut: dict[str, dict[str, int]] = {}

    def __call__(self, now_ms: float, event: Event, commands: Sequence[Command]) -> None:
        if isinstance(event, WorkFinished):
            work = event.work
            if isinstance(work, ReleasePartition):
                self.cut[work.gpu].pop(work.partition, None)
            elif isinstance(work, CreatePartition) and event.failure is None:
                self.cut.setdefault(work.gpu, {})[work.partition] = work.share_pct
                assert sum(self.cut[work.gpu].values()) <= 100


def check(played: FleetSimulation, record: FleetRecord) -> None:
    sent = Counter(played.arrivals.models[which] for which in played.arrivals.which)
    assert Counter(one.model for one in record.requests) == sent
    for one in record.requests:
        assert len(one.nodes) == len(one.tried_ms)
        for again_ms in one.tried_ms[1:]:
            assert again_ms < one.arrived_ms + one.slo_ms
        if one.outcome is Outcome.OK:
            assert one.nodes and one.answered_ms > one.tried_ms[-1]


@settings(max_examples=8, deadline=None)
@given(lost=losses(), news_ms=st.floats(0.0, 30.0), request_ms=st.floats(0.0, 5.0))
def test_every_request_has_one_answer_and_runs_repeat(
    lost: list[Loss], news_ms: float, request_ms: float
) -> None:
    played = scenario(
        *lost, delays=Delays(news_ms, news_ms, request_ms), seconds=2.5, rate_rps=100.0
    )
    shares = {node.name: Shares() for node in played.nodes}
    record = simulate_fleet(played, observers={name: [one] for name, one in shares.items()})
    check(played, record)
    assert any(one.cut for one in shares.values())
    assert simulate_fleet(played) == record


def test_the_engines_of_nodes_replay() -> None:
    played = scenario(Loss("n1", 1000.0, LossKind.HANG, 800.0))
    logs = {node.name: RunLog() for node in played.nodes}
    simulate_fleet(played, observers={name: [log] for name, log in logs.items()})
    for node in played.nodes:
        engine = Engine(Fleet(node.gpus), played.system)
        assert len(logs[node.name].entries) > 100
        for now_ms, event, commands in logs[node.name].entries:
            assert engine.handle(event, now_ms) == commands


def test_without_losses_every_promise_is_kept() -> None:
    found = fleet_report(simulate_fleet(scenario()))
    assert found.requests > 2000 and found.broken == 0 and found.plans == 1


@pytest.mark.parametrize("kind", LossKind)
def test_a_lost_node_is_noticed_and_its_models_stand_elsewhere(kind: LossKind) -> None:
    record = simulate_fleet(scenario(Loss("n0", 1000.0, kind)))
    (loss,) = fleet_report(record).losses
    assert loss.noticed_ms <= 500.0
    assert loss.noticed_ms < loss.replanned_ms <= 1500.0
    after_ms = record.from_ms + 1000.0 + loss.replanned_ms
    late = [one for one in record.requests if one.arrived_ms > after_ms]
    assert len(late) > 500 and all(one.in_time for one in late)


@pytest.mark.parametrize("kind", LossKind)
def test_a_node_that_is_back_serves_again(kind: LossKind) -> None:
    played = scenario(Loss("n0", 200.0, kind, 800.0), seconds=6.0, rate_rps=400.0)
    record = simulate_fleet(played)
    last = [one for one in record.requests if one.arrived_ms > record.until_ms - 1000.0]
    assert any(one.nodes[-1] == "n0" for one in last)
    assert all(one.in_time for one in last)


def test_what_a_dead_node_had_is_tried_elsewhere() -> None:
    record = simulate_fleet(scenario(Loss("n0", 1000.0), rate_rps=3000.0, models=["m"]))
    again = [one for one in record.requests if len(one.nodes) > 1]
    assert again and all(one.nodes[0] == "n0" and one.in_time for one in again)


def test_old_news_and_several_routers_cost_little() -> None:
    fresh = fleet_report(simulate_fleet(scenario(rate_rps=1200.0, routers=1)))
    played = scenario(rate_rps=1200.0, routers=8, delays=Delays(news_ms=20.0))
    old = fleet_report(simulate_fleet(played))
    assert fresh.attainment > 0.99 and old.attainment > 0.98


def test_rates_that_move_make_a_plan_that_is_carried_out() -> None:
    moved = tuple(Demand(name, 1500.0, 50.0) for name in MODELS)
    played = replace(scenario(), changes=(RateChange(1000.0, moved),))
    record = simulate_fleet(played)
    (change,) = record.changes
    assert change.at_ms < change.settled_ms < change.at_ms + 1000.0
    assert all(one.in_time for one in record.requests)


def test_a_loss_is_read() -> None:
    assert parse_loss("n0@1.5") == Loss("n0", 1500.0)
    assert parse_loss("n0@2:hang+0.5") == Loss("n0", 2000.0, LossKind.HANG, 500.0)
    for wrong in ("n0", "n0@x", "@1", "n0@1:burn", "n0@1.2.3"):
        with pytest.raises(InputError, match="expected NODE@SECONDS"):
            parse_loss(wrong)


def test_a_loss_of_no_node_is_refused() -> None:
    with pytest.raises(ValueError, match="no node 'n7'"):
        scenario(Loss("n7", 1.0))


def test_many_nodes_are_asked_more_rarely_and_are_not_lost_for_it() -> None:
    limits = RoutingLimits()
    assert limits.pause_ms(3) == 20.0
    assert limits.silent_after_ms(1000) > limits.pause_ms(1000)
    assert limits.lost_after_ms(1000) > 2 * limits.pause_ms(1000)
    assert limits.lost_after_ms(100) <= 400.0


def regroups(gpus: list[str], demand: Sequence[Demand]) -> list[Partition]:
    """Pairs of models share a node; above 150 rows a second other pairs: two change places."""
    pairs = ("mk", "lj") if demand[0].rows_per_s < 150.0 else ("mj", "lk")
    return [
        Partition(f"p{n}{pair}", gpu, 100, tuple(Slot(name, 4, 100.0) for name in pair))
        for n, (gpu, pair) in enumerate(zip(gpus, pairs, strict=False))
    ]


@pytest.mark.parametrize("news_ms", [0.5, 20.0])
def test_no_request_is_refused_since_its_model_moves(news_ms: float) -> None:
    models = {name: line_profile(name, 2.0, 1.0) for name in "mklj"}
    demand = tuple(Demand(name, 100.0, 50.0) for name in models)
    gpu = replace(FREE, id="gpu0", memory_bytes=10**9)
    played = replace(
        scenario(delays=Delays(news_ms=news_ms)),
        system=planned_by(regroups),
        nodes=tuple(NodeDescription(f"n{i}", "", 1, "", True, (gpu,)) for i in range(2)),
        demand=demand,
        belief={FREE.kind: models},
        truth={FREE.kind: models},
        arrivals=merge_arrivals({name: Gamma(100.0, 1.0) for name in models}, 4.0, 0),
        changes=tuple(
            RateChange(at_ms, tuple(replace(one, rows_per_s=rate) for one in demand))
            for at_ms, rate in ((1000.0, 200.0), (1500.0, 100.0), (2500.0, 200.0))
        ),
        epoch_ms=float("inf"),
    )
    record = simulate_fleet(played)
    by_node = Counter((one.model, one.nodes[-1]) for one in record.requests)
    assert all(by_node["k", name] > 50 and by_node["j", name] > 50 for name in ("n0", "n1"))
    assert Counter(one.outcome for one in record.requests).keys() == {Outcome.OK}


def test_nodes_of_two_kinds_serve_what_is_known_on_theirs() -> None:
    """One kind is slower, and knows nothing of one model; then the last node of the other goes."""
    slower = {name: line_profile(name, 6.0, 3.0) for name in ("m", "k")}
    fast, slow = (replace(FREE, id="gpu0", kind=kind, memory_bytes=10**9) for kind in "fs")
    played = replace(
        scenario(Loss("n0", 3000.0), rate_rps=150.0, seconds=6.0),
        nodes=(
            NodeDescription("n0", "z0", 1, "", True, (fast,)),
            NodeDescription("n1", "z1", 2, "", True, (slow,)),
        ),
        belief={"f": PROFILES, "s": slower},
        truth={"f": PROFILES, "s": slower},
    )
    record = simulate_fleet(played)
    assert len(record.requests) == len(played.arrivals)
    lost_ms = record.from_ms + 3000.0
    first = [one for one in record.requests if one.arrived_ms < lost_ms - 50.0]
    assert {one.outcome for one in first} == {Outcome.OK}
    at = {name: {one.nodes[-1] for one in first if one.model == name} for name in MODELS}
    assert at["l"] == {"n0"} and at["m"] | at["k"] == {"n0", "n1"}
    (seen,) = record.losses
    later = [one for one in record.requests if one.arrived_ms > seen.replanned_ms + 200.0]
    served = Counter(one.model for one in later if one.outcome is Outcome.OK)
    assert {tuple(one.nodes) for one in later if one.outcome is Outcome.OK} == {("n1",)}
    assert served.keys() == {"m", "k"}


def test_a_node_of_an_unknown_kind_is_no_part_of_a_scenario() -> None:
    with pytest.raises(ValueError, match="no model has a profile on"):
        replace(scenario(), belief={"another": PROFILES})
