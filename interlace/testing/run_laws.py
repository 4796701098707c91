"""Laws of whole runs, and the log of a run that they check."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

from interlace.core.messages import Command, Event, RequestArrived, SendReply
from interlace.core.plan import Demand
from interlace.core.request import Outcome
from interlace.engine.engine import Engine
from interlace.policy.base import System
from interlace.sim.arrivals import Arrivals, merge_arrivals
from interlace.sim.record import RunRecord
from interlace.sim.run import FixedPlan, simulate
from interlace.sim.scenario import Simulation
from interlace.sim.workload.renewal import Gamma
from interlace.testing.law import single_case
from interlace.testing.worlds import line_profile, machine


class RunLog:
    """Events and commands of a run, which it observes."""

    def __init__(self) -> None:
        self.entries: list[tuple[float, Event, list[Command]]] = []

    def __call__(self, now_ms: float, event: Event, commands: Sequence[Command]) -> None:
        self.entries.append((now_ms, event, list(commands)))

    def check_answers(self) -> None:
        """Each arrival has one answer, and each ``OK`` answer is in time."""
        sent = [e.request.id for _, e, _ in self.entries if isinstance(e, RequestArrived)]
        answers = [c.reply for _, _, cs in self.entries for c in cs if isinstance(c, SendReply)]
        assert Counter(sent) == Counter(reply.request.id for reply in answers)
        for now_ms, _, commands in self.entries:
            for one in commands:
                if isinstance(one, SendReply) and one.reply.outcome is Outcome.OK:
                    assert now_ms <= one.reply.request.deadline_ms

    def check_replay(self, scenario: Simulation) -> None:
        """A fresh engine answers the same events with the same commands."""
        assert scenario.plan is not None
        system = replace(scenario.system, planner=FixedPlan(scenario.plan))
        engine = Engine(scenario.fleet, system)
        for now_ms, event, commands in self.entries:
            assert engine.handle(event, now_ms) == commands


def _arrivals(seed: int) -> Arrivals:
    return merge_arrivals({f"m{i}": Gamma(150.0, 2.0) for i in range(3)}, 3.0, seed)


def _played(system: System, seed: int) -> RunRecord:
    profiles = {f"m{i}": line_profile(f"m{i}", 1.0 + i, 0.5) for i in range(3)}
    demand = tuple(Demand(model, 150.0, 40.0) for model in profiles)
    return simulate(Simulation(system, machine(), demand, profiles, profiles, _arrivals(seed)))


@single_case
def runs_answer_everyone_once_and_repeat_with_their_seed(system: System) -> None:
    first, again, other = _played(system, 1), _played(system, 1), _played(system, 2)
    assert repr(first) == repr(again)
    assert repr(first) != repr(other)
    sent = Counter(_arrivals(1).models[which] for which in _arrivals(1).which)
    assert Counter(one.model for one in first.served) == sent
    for one in first.served:
        if one.outcome is Outcome.OK:
            assert one.answered_ms <= one.deadline_ms
        if one.outcome in (Outcome.OK, Outcome.LATE):
            assert one.arrived_ms <= one.started_ms < one.answered_ms
    shares = {span.partition: span.share_pct for span in first.spans}
    assert all(shares[run.partition] == run.share_pct for run in first.executions)
