"""A request's time begins when it arrived, not when the server had a core to read it."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys

from interlace.server.dataplane.call import InferenceCall
from interlace.server.dataplane.plane import WAITED, DataPlane
from interlace.server.dataplane.run_delay import RunDelay
from interlace.server.model_table import ModelTable, ServedModel
from tests.server.fakes import FakeRuntime, Memory, one_to_one


def test_the_wait_counts_from_the_deadline_up_to_a_part_of_it() -> None:
    async def arrivals() -> list[float]:
        runtime, table, memory = FakeRuntime(), ModelTable(), Memory()
        runtime.hold = True
        table.publish(ServedModel(one_to_one("m", slo_ms=1000.0)))
        before_ms = []
        for waited_ms in (0.0, 30.0, 5000.0):
            plane = DataPlane(
                runtime, table, memory.map, waited_ms=lambda waited_ms=waited_ms: waited_ms
            )
            tensor = memory.put("INPUT0", "FP32", (1, 1), bytes(4))
            now_ms = runtime.clock.now_ms()
            request = plane.infer(
                InferenceCall("m", "", "", (tensor,)), lambda _: None, lambda _: None
            )
            assert request is not None
            assert request.deadline_ms - request.arrived_ms == 1000.0
            before_ms.append(now_ms - request.arrived_ms)
        memory.close()
        return before_ms

    none, some, capped = asyncio.run(arrivals())
    assert none <= 0.0
    assert 30.0 - 10.0 < some <= 30.0
    assert capped <= WAITED * 1000.0


def test_a_busy_core_is_seen_and_no_descriptor_is_left() -> None:
    open_before, cores = len(os.listdir("/proc/self/fd")), os.sched_getaffinity(0)
    core = min(cores)

    async def waited_ms() -> float:
        wait, total_ms = RunDelay(asyncio.get_running_loop()), 0.0
        for _ in range(4000):
            total_ms += wait.ms()
            if total_ms > 1.0:
                break
            await asyncio.sleep(0.005)
        wait.close()
        return total_ms

    spin = f"import os; os.sched_setaffinity(0, [{core}])\nwhile True: pass"
    with subprocess.Popen([sys.executable, "-c", spin]) as busy:
        try:
            os.sched_setaffinity(0, [core])
            assert asyncio.run(waited_ms()) > 1.0
        finally:
            os.sched_setaffinity(0, cores)
            busy.kill()
    assert len(os.listdir("/proc/self/fd")) <= open_before
