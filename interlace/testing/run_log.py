"""What happened in a run, and what is true of every run."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

from interlace.core.messages import Command, Event, RequestArrived, SendReply
from interlace.core.request import Outcome
from interlace.engine.engine import Engine
from interlace.sim.run import FixedPlan
from interlace.sim.scenario import Simulation


class RunLog:
    """Events and commands of a run, which it observes."""

    def __init__(self) -> None:
        self.entries: list[tuple[float, Event, list[Command]]] = []

    def __call__(self, now_ms: float, event: Event, commands: Sequence[Command]) -> None:
        self.entries.append((now_ms, event, list(commands)))

    def check_answers(self) -> None:
        """Each arrival has one answer, and what is told to be in time is."""
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
