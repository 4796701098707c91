"""A scenario played by compiled code: the engine's answers, two orders of magnitude faster."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from interlace.policy.admission import DeadlineAdmission, admit_all
from interlace.policy.base import Admission, Dispatcher
from interlace.policy.dispatchers.deadline import earliest_deadline
from interlace.policy.dispatchers.duty import duty
from interlace.sim.fast import play
from interlace.sim.fast.build import Stand, loaded, stand
from interlace.sim.fast.layout import Table, World
from interlace.sim.fast.queues import OUTCOMES
from interlace.sim.record import Execution, GpuSpan, PartitionSpan, RunRecord, ServedRequest
from interlace.sim.scenario import Simulation

#: By dispatcher, and whether admission asks for the deadline.
_PLAYS: Final[dict[tuple[Dispatcher, bool], Callable[[World], None]]] = {
    (duty, False): play.play_duty,
    (duty, True): play.play_duty_in_time,
    (earliest_deadline, False): play.play_deadline,
    (earliest_deadline, True): play.play_deadline_in_time,
}


@dataclass(frozen=True, slots=True)
class Played:
    """A finished run as arrays: see ``layout.REQUEST`` and ``layout.EXECUTION``."""

    stand: Stand
    requests: Table
    executions: Table

    def outcomes(self) -> NDArray[np.int64]:
        """How many requests ended each way, in the order of ``OUTCOMES``."""
        return np.bincount(self.requests["outcome"], minlength=len(OUTCOMES))


def played(scenario: Simulation, standing: Stand | None = None) -> Played:
    """Play a scenario; ``standing`` saves setting up again what only differs in its trace.

    Raises:
        ValueError: the scenario is one that only the engine plays, with the reason.
    """
    rule = _rule(scenario.system.dispatcher, scenario.system.admission)
    standing = standing or stand(scenario)
    slo_ms = {one.model: one.slo_ms for one in scenario.demand}
    world = loaded(standing, scenario.arrivals, [slo_ms[name] for name in standing.models])
    rule(world)
    while world.state["open"][0]:  # it stopped for want of room
        more = np.zeros_like(world.calls)
        world = world._replace(calls=np.concatenate([world.calls, more]))
        rule(world)
    return Played(standing, world.requests, world.executions[: world.state["executions"][0]])


def simulate_fast(scenario: Simulation) -> RunRecord:
    """What ``sim.run.simulate`` would return, requests in order of arrival.

    Raises:
        ValueError: the scenario is one that only the engine plays, with the reason.
    """
    done = played(scenario)
    lives, start_ms = done.stand.partitions, done.stand.start_ms
    served = [_served(done.stand, one) for one in done.requests]
    executions = [_execution(done.stand, one) for one in done.executions]
    spans = [PartitionSpan(live.gpu, live.id, live.share_pct, 0.0, float("inf")) for live in lives]
    gpus = tuple(gpu.id for gpu in scenario.fleet.gpus)
    until_ms = start_ms + scenario.arrivals.seconds * 1000.0
    presences = [GpuSpan(gpu, 0.0, float("inf")) for gpu in gpus]
    return RunRecord(start_ms, until_ms, gpus, served, executions, spans, presences)


def _served(stand: Stand, one: Table) -> ServedRequest:
    batch_rows, partition = int(one["batch_rows"]), int(one["partition"])
    return ServedRequest(
        stand.models[one["model"]],
        float(one["arrived_ms"]),
        float(one["deadline_ms"]),
        float(one["answered_ms"]),
        float(one["started_ms"]),
        OUTCOMES[one["outcome"]],
        1,
        batch_rows,
        stand.partitions[partition].id if partition >= 0 else "",
    )


def _execution(stand: Stand, one: Table) -> Execution:
    live = stand.partitions[one["partition"]]
    model, rows = stand.models[one["model"]], int(one["rows"])
    times = float(one["started_ms"]), float(one["ended_ms"])
    return Execution(live.gpu, live.id, live.share_pct, model, rows, *times, False)


def _rule(dispatcher: Dispatcher, admission: Admission) -> Callable[[World], None]:
    known = admission is admit_all or isinstance(admission, DeadlineAdmission)
    rule = _PLAYS.get((dispatcher, admission is not admit_all)) if known else None
    if rule is None:
        raise ValueError(
            "the fast simulator knows the dispatchers duty and deadline, and the admissions "
            "everyone and Deadline"
        )
    return rule
