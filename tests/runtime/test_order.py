"""In which order commands are carried out: accelerators do not wait for replies."""

from collections.abc import Sequence

import pytest

from interlace.core.hardware import Fleet
from interlace.core.messages import (
    Command,
    EpochEnded,
    Event,
    Run,
    SendReply,
    SolvePlan,
    WakeAt,
)
from interlace.core.plan import Plan
from interlace.core.request import Batch, Callbacks, Outcome, Reply, Request
from interlace.device.base import Done
from interlace.device.simulated.device import SimulatedDevice
from interlace.runtime.clock import SimClock
from interlace.runtime.plan_solver import GiveUp
from interlace.runtime.runtime import Runtime
from tests.builders import line_profile, machine

REQUESTS = tuple(Request(number, "m", 0.0, 100.0) for number in (1, 2, 3))

pytestmark = pytest.mark.sources  # a compiled class has no interpreted ones below it


def run(request: Request) -> Run:
    return Run("g0", "p", Batch(request.id, "m", (request,), 1))


class Ended:
    """A machine that has something to answer and something to run, in that order."""

    def handle(self, event: Event, now_ms: float) -> Sequence[Command]:
        if not isinstance(event, EpochEnded):
            return []
        first, second, third = REQUESTS
        return [
            SendReply(Reply(first, Outcome.OK)),
            run(second),
            WakeAt(5.0),
            SendReply(Reply(third, Outcome.OK)),
            run(third),
        ]


class Watched(SimulatedDevice):
    """Writes down what it is asked for."""

    done: list[str]

    def do(self, work: object, done: Done) -> None:
        assert isinstance(work, Run)
        self.done.append(f"run {work.batch.id}")


def test_devices_are_told_before_replies_are_given_and_each_in_order() -> None:
    clock, fleet = SimClock(), machine()
    (gpu,) = fleet.gpus
    device = Watched(gpu, clock, {"m": line_profile("m")})
    device.done = []
    runtime = Runtime(Ended(), clock, {gpu.id: device}, lambda question, done: lambda: None)
    for request in REQUESTS:
        name = f"reply {request.id}"
        runtime.submit(request, Callbacks(lambda reply, name=name: device.done.append(name)))  # type: ignore[misc]
    runtime.deliver(EpochEnded())
    assert device.done == ["run 2", "run 3", "reply 1", "reply 3"]


class Asks:
    """A planner that asks at the end of every epoch."""

    def handle(self, event: Event, now_ms: float) -> Sequence[Command]:
        return [SolvePlan(0, (), Plan(), {}, Fleet(()))] if isinstance(event, EpochEnded) else []


def test_a_question_is_given_up_for_the_next() -> None:
    told: list[str] = []

    def solver(question: SolvePlan, done: object) -> GiveUp:
        told.append("asked")
        return lambda: told.append("given up")

    runtime = Runtime(Asks(), SimClock(), {}, solver)
    for _ in range(3):
        runtime.deliver(EpochEnded())
    assert told == ["asked", "given up", "asked", "given up", "asked"]
