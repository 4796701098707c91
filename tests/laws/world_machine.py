"""Rules that state machines over a world have in common: traffic ends, faults, departures."""

from collections.abc import Sequence

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, rule

from interlace.core.messages import ModelWithdrawn
from interlace.core.request import Request
from interlace.engine.engine import Engine
from tests.builders import World


class WorldMachine(RuleBasedStateMachine):
    """A world in virtual time under random faults; ``sent`` are its requests."""

    models: Sequence[str]
    world: World
    sent: list[Request]

    @rule(data=st.data())
    def cancel(self, data: st.DataObject) -> None:
        if self.sent:
            self.world.runtime.cancel(data.draw(st.sampled_from(self.sent)))

    @rule(ms=st.floats(0.1, 400.0))
    def wait(self, ms: float) -> None:
        self.world.run(ms)

    @rule(data=st.data())
    def withdraw(self, data: st.DataObject) -> None:
        self.world.runtime.deliver(ModelWithdrawn(data.draw(st.sampled_from(self.models))))

    @rule(data=st.data())
    def kill(self, data: st.DataObject) -> None:
        devices = self.world.devices
        known = sorted((gpu, name) for gpu in devices for name in devices[gpu].partitions)
        if known:
            gpu, name = data.draw(st.sampled_from(known))
            devices[gpu].kill(name)

    @rule(data=st.data())
    def lose(self, data: st.DataObject) -> None:
        """An accelerator disappears, whatever it was doing."""
        there = sorted(gpu.id for gpu in self.world.state.fleet.gpus)
        if len(there) > 1:
            self.world.runtime.leave(data.draw(st.sampled_from(there)))

    def end(self, after_ms: float) -> None:
        """In the end every request has one answer, and a replay says the same."""
        self.world.run(after_ms)
        answers = sorted(reply.request.id for _, reply in self.world.replies)
        assert answers == sorted(request.id for request in self.sent)
        assert self.world.runtime.unanswered == 0
        replayed = Engine(self.world.fleet, self.world.system, self.world.reserve)
        for now_ms, event, commands in self.world.log:
            assert replayed.handle(event, now_ms) == commands
