"""Plans change on real cores while requests flow: nothing is lost and no model goes missing."""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from bench.hosting_gaps import Gaps
from interlace.core.hardware import Fleet
from interlace.core.messages import (
    Deployment,
    ModelsDeployed,
    PlanSolved,
    ReleasePartition,
    SolvePlan,
)
from interlace.core.plan import Demand, Partition, Plan, Slot
from interlace.core.request import Callbacks, Outcome, Reply, Request
from interlace.engine.engine import Engine
from interlace.policy.admission import admit_all
from interlace.policy.catalog import resolve
from interlace.runtime.clock import WallClock
from interlace.runtime.plan_solver import GiveUp, OnPlanned
from interlace.runtime.runtime import Runtime
from tests.builders import line_profile
from tests.device.cpu.rig import Rig, settings
from tests.device.cuda.rig import cuda_rig
from tests.device.cuda.torch_models import REAL
from tests.device.models import model

MODELS = ("double", "slow")
KNOWN = {name: model(name) for name in MODELS}
KEYS = [KNOWN[name].key for name in MODELS]


def _plan(gpu: str, *shares: tuple[int, Sequence[str]]) -> Plan:
    return Plan(
        tuple(
            Partition(str(index), gpu, share_pct, tuple(Slot(m, 4, 10.0) for m in models))
            for index, (share_pct, models) in enumerate(shares)
        )
    )


class _Traffic:
    """Requests to both models at a steady pace, from a runtime's clock."""

    def __init__(self, rig: Rig, runtime: Runtime) -> None:
        self.sent: list[Request] = []
        self.replies: list[Reply] = []
        self._rig, self._runtime = rig, runtime
        self._tensor = rig.floats(KNOWN["double"], [1.0, 2.0, 3.0, REAL]).inputs
        self.on = True

    def send(self) -> None:
        if not self.on:
            return
        now_ms = self._runtime.clock.now_ms()
        key = KEYS[len(self.sent) % 40 == 39]
        request = Request(
            self._runtime.next_id(), key, now_ms, now_ms + 20_000.0, inputs=self._tensor
        )
        self.sent.append(request)
        self._runtime.submit(request, Callbacks(self._answered))
        self._runtime.clock.call_at(now_ms + 4.0, self.send)

    def _answered(self, reply: Reply) -> None:
        self.replies.append(reply)
        self._runtime.delivered(reply)


@pytest.fixture(params=["cpu", "green", "streams", "mps"])
def rig(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Rig]:
    """Cores, and GPUs of each mechanism that are not there."""
    rig = Rig(settings(tmp_path)) if request.param == "cpu" else cuda_rig(request.param)
    yield rig
    rig.close()


def test_changing_plans_under_traffic_answer_every_request_once(rig: Rig) -> None:
    half = min(share for share in rig.device.gpu.shares_pct if share >= 50)
    plans = [
        _plan(rig.gpu, (half, KEYS[:1]), (half, KEYS[1:])),
        _plan(rig.gpu, (100, KEYS)),
        _plan(rig.gpu, (half, KEYS), (half, KEYS)),
    ]
    asked: list[SolvePlan] = []

    def solve(question: SolvePlan, done: OnPlanned) -> GiveUp:
        asked.append(question)
        answer = PlanSolved(question.ticket, plans[len(asked) % len(plans)])
        runtime.clock.call_soon(lambda: done(answer))
        return lambda: None

    fleet = Fleet((rig.device.gpu,))
    row = replace(resolve("interlace"), admission=admit_all)
    engine = Engine(fleet, row)
    gaps, released = Gaps(Engine(fleet, row)), Counter[str]()

    def count(now_ms: float, event: object, commands: Sequence[object]) -> None:
        released.update(one.partition for one in commands if isinstance(one, ReleasePartition))

    for known in KNOWN.values():
        rig.device.register(known)
    runtime = Runtime(engine, WallClock(rig.loop), {rig.gpu: rig.device}, solve, [gaps, count])
    profiles = {KEYS[0]: line_profile(KEYS[0], 1.0, 0.1), KEYS[1]: line_profile(KEYS[1], 30.0, 1.0)}
    demand = [Demand(key, 0.0, 20_000.0, max_batch=4) for key in KEYS]
    runtime.deliver(ModelsDeployed(tuple(Deployment(d, profiles[d.model]) for d in demand)))
    traffic = _Traffic(rig, runtime)
    traffic.send()

    for _ in range(5):
        rig.wait(lambda: engine.snapshot().reached)
        rig.pause(0.1)
        runtime.deliver(ModelsDeployed(()))
    rig.wait(lambda: engine.snapshot().reached)
    traffic.on = False
    rig.wait(lambda: runtime.unanswered == 0)
    assert Counter(reply.request.id for reply in traffic.replies) == Counter(
        request.id for request in traffic.sent
    )
    assert {reply.outcome for reply in traffic.replies} == {Outcome.OK}
    assert len(asked) == 6 and len(released) >= 4, "plans were to change"
    assert gaps.gaps == [] and gaps.open_gaps == []
