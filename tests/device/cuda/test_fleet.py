"""Two GPUs: one fails under traffic, the other serves meanwhile, and it comes back."""

import asyncio
import os
import signal
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from functools import partial

import pytest

from interlace.core.hardware import Fleet
from interlace.core.messages import (
    Deployment,
    GpuJoined,
    GpuLeft,
    ModelsDeployed,
    PlanSolved,
    SolvePlan,
)
from interlace.core.plan import Demand, Partition, Plan, Slot
from interlace.core.request import Callbacks, Outcome, Reply, Request
from interlace.device.cuda.device import CudaDevice
from interlace.engine.engine import Engine
from interlace.policy.admission import admit_all
from interlace.policy.catalog import resolve
from interlace.runtime.clock import WallClock
from interlace.runtime.plan_solver import GiveUp, OnPlanned
from interlace.runtime.runtime import Runtime
from tests.builders import line_profile
from tests.device.cpu.rig import Rig
from tests.device.cuda.rig import cuda_rig, device_on
from tests.device.cuda.torch_models import REAL
from tests.device.models import model

DOUBLE = model("double")
#: Longer than a process takes to start where others do, too.
SLO_MS = 120_000.0


@pytest.fixture
def rig() -> Iterator[Rig]:
    made = cuda_rig("green")
    yield made
    made.close()


@pytest.fixture
def second(rig: Rig) -> Iterator[CudaDevice]:
    made = device_on(rig, "green", "gpu1")
    yield made
    made.close()


def _everywhere(question: SolvePlan) -> Plan:
    slots = (Slot(DOUBLE.key, 4, 10.0),)
    gpus = [gpu.id for gpu in question.fleet.gpus]
    return Plan(tuple(Partition(f"{gpu}:0", gpu, 54, slots) for gpu in gpus))


def test_the_other_gpu_serves_while_one_is_away(rig: Rig, second: CudaDevice) -> None:
    devices = {"gpu0": rig.device, "gpu1": second}
    fleets: list[int] = []

    def solve(question: SolvePlan, done: OnPlanned) -> GiveUp:
        fleets.append(len(question.fleet.gpus))
        runtime.clock.call_soon(lambda: done(PlanSolved(question.ticket, _everywhere(question))))
        return lambda: None

    changes: list[object] = []
    row = replace(resolve("interlace"), admission=admit_all)
    engine = Engine(Fleet(tuple(device.gpu for device in devices.values())), row)
    watch = lambda now_ms, event, commands: changes.append(event)  # noqa: E731
    runtime = Runtime(engine, WallClock(rig.loop), devices, solve, [watch])
    for name, device in devices.items():
        device.register(DOUBLE)
        device.on_away(partial(runtime.gpu_failed, name), partial(runtime.gpu_recovered, name))
    profile = line_profile(DOUBLE.key, 1.0, 0.1)
    demand = Demand(DOUBLE.key, 0.0, SLO_MS, max_batch=4)
    runtime.deliver(ModelsDeployed((Deployment(demand, profile),)))
    rig.wait(lambda: engine.snapshot().reached)

    replies: list[Reply] = []
    sent = rig.loop.run_until_complete(_traffic(rig, runtime, replies, engine, second))
    assert Counter(reply.request.id for reply in replies) == Counter(one.id for one in sent)
    assert {reply.outcome for reply in replies} == {Outcome.OK}
    assert [type(one) for one in changes if isinstance(one, GpuLeft | GpuJoined)] == [
        GpuLeft,
        GpuJoined,
    ]
    assert fleets == [2, 1, 2]
    assert {live.gpu for live in engine.snapshot().partitions.values()} == {"gpu0", "gpu1"}


async def _traffic(
    rig: Rig, runtime: Runtime, replies: list[Reply], engine: Engine, victim: CudaDevice
) -> list[Request]:
    """Requests at a steady pace until the victim was killed, and serves again."""
    inputs = rig.floats(DOUBLE, [1.0, 2.0, 3.0, REAL]).inputs
    sent: list[Request] = []

    def answered(reply: Reply) -> None:
        replies.append(reply)
        runtime.delivered(reply)

    async def send(count: int) -> None:
        for _ in range(count):
            now_ms = runtime.clock.now_ms()
            sent.append(
                Request(runtime.next_id(), DOUBLE.key, now_ms, now_ms + SLO_MS, inputs=inputs)
            )
            runtime.submit(sent[-1], Callbacks(answered))
            await asyncio.sleep(0.003)

    await send(50)
    (pid,) = set(victim.workers().values())
    os.kill(pid, signal.SIGKILL)
    for count in (1, 2):  # away, and back
        ends_ms = runtime.clock.now_ms() + SLO_MS
        while len(engine.snapshot().fleet.gpus) != count:
            assert runtime.clock.now_ms() < ends_ms, f"not {count} GPU(s) in time"
            await send(5)
    await send(50)
    while runtime.unanswered or not engine.snapshot().reached:
        await asyncio.sleep(0.01)
    return sent


async def test_a_gpu_that_does_not_come_back_is_tried_less_and_less_often(
    caplog: pytest.LogCaptureFixture,
) -> None:
    from interlace.core.messages import Failure
    from interlace.device.cuda.device import OnStarted, Restarter

    told: list[str] = []
    tries: list[float] = []
    loop = asyncio.get_running_loop()

    def start(started: OnStarted) -> None:
        tries.append(loop.time())
        started(Failure("no device") if len(tries) < 3 else None)

    absence = Restarter(
        loop, start, lambda: told.append("away"), lambda: told.append("back"), "gpu0"
    )
    absence._pause_s = 0.02
    absence.begin()
    absence._pause_s = 0.02
    absence.begin()  # it is away already
    async with asyncio.timeout(30.0):
        while "back" not in told:
            await asyncio.sleep(0.01)
    absence.close()
    assert told == ["away", "back"]
    logged = [text for text in caplog.messages if text.startswith("gpu0 does not come back: ")]
    ends = [text.partition("; ")[2] for text in logged]
    assert ends == ["tried again in 0.02 s", "tried again in 0.04 s"]
    assert tries[2] - tries[1] > tries[1] - tries[0]
