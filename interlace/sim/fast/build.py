"""From a scenario that the engine has set up to arrays that compiled code plays."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from interlace.device.simulated.costs import MechanismCosts
from interlace.device.simulated.device import SimulatedDevice
from interlace.engine import latency_estimator
from interlace.engine.live_partition import LivePartition
from interlace.engine.state import EngineState
from interlace.perf.latency import surface
from interlace.policy.fairness import owed_ms, planned_rows_per_s
from interlace.sim.arrivals import Arrivals
from interlace.sim.fast import layout
from interlace.sim.fast.layout import Table, World
from interlace.sim.run import warmed
from interlace.sim.scenario import Simulation

_CALLS: Final = 1024


@dataclass(frozen=True, slots=True)
class Stand:
    """What does not change from run to run: a world without requests, and its names.

    ``settled`` is copied by ``loaded``; ``start_ms`` is when a trace begins.
    """

    settled: World
    models: tuple[str, ...]
    partitions: tuple[LivePartition, ...]
    start_ms: float


def stand(scenario: Simulation) -> Stand:
    """Let the engine deploy, plan, carve and load, and take down what stands then.

    Raises:
        ValueError: the scenario is one that only the engine plays, with the reason.
    """
    _check(scenario)
    _, clock, engine = warmed(scenario, ())
    state = engine._state
    lives = tuple(state.partitions.values())
    loaded = {(live.id, slot.model) for live in lives for slot in live.slots}
    wanted = {(p.id, slot.model) for p in state.target.partitions for slot in p.slots}
    if loaded != wanted or not all(deployed.hosts for deployed in state.models.values()):
        raise ValueError("not every model is loaded everywhere when the trace begins")
    if any(slot.guest for live in lives for slot in live.slots):
        raise ValueError("the plan lends time to guests, which only the engine plays")
    names = tuple(state.models)
    return Stand(_world(scenario, state, lives), names, lives, clock.now_ms())


def loaded(stand: Stand, arrivals: Arrivals, slo_ms: Sequence[float]) -> World:
    """The stand with a trace before it; ``slo_ms`` by model, in the stand's order."""
    known = {name: index for index, name in enumerate(stand.models)}
    which = np.array([known[name] for name in arrivals.models], np.int64)[arrivals.which]
    count = len(arrivals)
    requests = np.zeros(count, layout.REQUEST)
    requests["arrived_ms"] = stand.start_ms + arrivals.times_ms
    requests["deadline_ms"] = requests["arrived_ms"] + np.asarray(slo_ms)[which]
    requests["model"], requests["outcome"], requests["partition"] = which, -1, -1
    requests["started_ms"] = np.nan
    fresh = World(*(column.copy() for column in stand.settled))
    ends = np.cumsum(np.bincount(which, minlength=len(stand.models)))
    fresh.models["first"] = fresh.models["last"] = np.concatenate([[0], ends[:-1]])
    fresh.state["open"] = count
    return fresh._replace(
        requests=requests,
        queued=np.zeros(count, np.int64),
        executions=np.zeros(count, layout.EXECUTION),
    )


def _check(scenario: Simulation) -> None:
    if scenario.device is not SimulatedDevice:
        raise ValueError("the fast simulator knows devices without physics only")
    if scenario.epoch_ms < float("inf") or scenario.reserve is not None:
        raise ValueError("the fast simulator keeps its plan: epoch_ms must be infinite")
    if any(gpu.ahead_ms for gpu in scenario.fleet.gpus):
        raise ValueError("the fast simulator gives batches to idle partitions alone")
    if scenario.system.staged:
        raise ValueError("the fast simulator does not stage inputs")
    if scenario.pipelines:
        raise ValueError("the fast simulator does not play apps")


def _world(scenario: Simulation, state: EngineState, lives: Sequence[LivePartition]) -> World:
    """Arrays of a warmed state."""
    slots, tables = _slots(scenario, state, lives)
    fleet = [gpu.id for gpu in scenario.fleet.gpus]
    on = [[i for i, live in enumerate(lives) if live.gpu == gpu] for gpu in fleet]
    if any(sum(lives[i].share_pct for i in own) > 100 for own in on):
        raise ValueError("the fast simulator knows no shares that overlap")
    here = [
        [m for m, t in enumerate(state.models.values()) if any(h.gpu == gpu for h in t.hosts)]
        for gpu in fleet
    ]
    gpus = np.zeros(len(fleet), layout.GPU)
    gpus["part_to"] = np.cumsum([len(own) for own in on])
    gpus["part_from"] = gpus["part_to"] - [len(own) for own in on]
    gpus["model_to"] = np.cumsum([len(own) for own in here])
    gpus["model_from"] = gpus["model_to"] - [len(own) for own in here]
    models, hosts = _models(state, lives, slots)
    return World(
        _clock(scenario, state), models, _partitions(lives, fleet), slots, hosts, gpus,
        np.array([i for own in on for i in own], np.int64),
        np.array([m for own in here for m in own], np.int64),
        *tables,
        np.zeros(0, layout.REQUEST), np.zeros(0, np.int64), np.zeros(0, layout.EXECUTION),
        np.zeros(_CALLS + 4 * (len(lives) + len(fleet)), layout.CALL),
        np.zeros(len(fleet), np.int64),
        np.zeros(len(lives), layout.LAUNCH),
        np.zeros(len(models), np.int64),
        np.zeros(max(len(live.slots) for live in lives), layout.CLAIM),
    )  # fmt: skip


def _clock(scenario: Simulation, state: EngineState) -> Table:
    one = np.zeros(1, layout.STATE)
    one["now_ms"], one["wake_at_ms"] = scenario.warm_ms, np.inf
    one["lost_ms"] = -np.inf
    one["lenience"] = getattr(scenario.system.admission, "lenience", 0.0)
    return one


def _partitions(lives: Sequence[LivePartition], fleet: Sequence[str]) -> Table:
    table = np.zeros(len(lives), layout.PARTITION)
    at = 0
    for one, live in zip(table, lives, strict=True):
        one["round_ms"], one["free_at_ms"] = live.round_ms, -np.inf
        one["gpu"], one["model"] = fleet.index(live.gpu), -1
        one["slot_from"], one["slot_to"] = at, at + len(live.slots)
        at += len(live.slots)
    return table


def _slots(
    scenario: Simulation, state: EngineState, lives: Sequence[LivePartition]
) -> tuple[Table, tuple[Table, Table]]:
    """Slots partition by partition, and the latencies of each: believed, true."""
    order = list(state.models)
    table = np.zeros(sum(len(live.slots) for live in lives), layout.SLOT)
    believed: list[float] = []
    true: list[float] = []
    pairs = [(live, slot) for live in lives for slot in live.slots]
    for one, (live, slot) in zip(table, pairs, strict=True):
        demand = state.models[slot.model].demand
        alone = len(live.slots) == 1
        limit = max(slot.batch, demand.max_batch) if alone else slot.batch
        one["last_start_ms"], one["hand_over_ms"] = -np.inf, MechanismCosts().hand_over_ms
        one["model"], one["batch"], one["limit"] = order.index(slot.model), slot.batch, limit
        one["planned_rps"], one["owed_ms"] = planned_rows_per_s(slot), owed_ms(slot)
        one["table"] = len(believed)
        longest = max(limit, slot.batch, 1)
        believed += surface(scenario.belief[slot.model]).table(live.share_pct, longest)
        true += surface(scenario.truth[slot.model], "median_ms").table(live.share_pct, longest)
    return table, (np.array(believed), np.array(true))


def _models(
    state: EngineState, lives: Sequence[LivePartition], slots: Table
) -> tuple[Table, Table]:
    """Models in order of deployment, and their hosts one after the other."""
    names = sorted(state.models)
    starts = np.cumsum([0, *(len(live.slots) for live in lives)])
    places = {live.id: index for index, live in enumerate(lives)}
    table = np.zeros(len(names), layout.MODEL)
    hosts: list[tuple[int, int]] = []
    for one, (name, deployed) in zip(table, state.models.items(), strict=True):
        admission_margin = deployed.admission_margin
        one["slo_ms"], one["rate_rps"] = deployed.demand.slo_ms, deployed.demand.rows_per_s
        one["factor"] = one["overall"] = 1.0
        one["spread"] = one["overall_spread"] = latency_estimator._SPREAD
        one["learned_ms"] = one["widened_ms"] = one["lost_ms"] = -np.inf
        one["margin_ms"] = one["least_ms"] = admission_margin.margin_ms
        one["step_ms"], one["most_ms"] = admission_margin._step_ms, admission_margin._most_ms
        one["rank"], one["limit"] = names.index(name), deployed.queue.limit
        one["host_from"] = len(hosts)
        for host in deployed.hosts:
            slot = [s.model for s in host.slots].index(name)
            hosts.append((places[host.id], int(starts[places[host.id]]) + slot))
        one["host_to"] = len(hosts)
    return table, np.array(hosts, layout.HOST)
