"""Test stands: a device of each kind with what it takes to make it work, wait and die."""

import asyncio
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

from interlace.core.hardware import Gpu
from interlace.core.messages import PartitionLost, Work, WorkFinished
from interlace.core.model import Model
from interlace.core.profile import Profile
from interlace.core.request import Request
from interlace.core.tensor import Span, Tensor
from interlace.device.base import Device
from interlace.device.simulated.answers import AnsweringDevice, AnswerWriter, WallTimer
from interlace.device.simulated.device import SimulatedDevice
from interlace.device.simulated.physics import MECHANISMS, HostCost, HostLink, Physics, Transfer
from interlace.perf.interference import ConstantFactor
from interlace.runtime.clock import SimClock
from interlace.shm.arena import Arena, ArenaMap
from tests.builders import line_profile
from tests.device.cpu.rig import Rig, settings
from tests.device.models import model

QUICK = model("double")
SLOW = model("slow")


class Stand(Protocol):
    """A device under test. ``QUICK`` and ``SLOW`` are registered; both run with these requests."""

    finished: list[WorkFinished]
    lost: list[PartitionLost]

    @property
    def device(self) -> Device: ...
    def do(self, work: Work) -> None:
        """Start a piece of work; its end is added to ``finished``."""

    def request(self, known: Model, rows: int) -> Request: ...
    def wait(self, until: Callable[[], bool]) -> None:
        """Let time pass until something is true, and fail if that takes too long."""

    def pause(self) -> None:
        """Let a little time pass."""

    def kill(self, partition: str) -> None:
        """Make a partition die by force."""

    def units(self, share_pct: int) -> int:
        """How many units a partition of that share has."""

    def die_together(self) -> bool:
        """Whether all partitions share a process."""

    def close(self) -> None: ...


class _Apart:
    """What is true of every device without a process for all."""

    device: Device

    def units(self, share_pct: int) -> int:
        return self.device.gpu.units * share_pct // 100

    def die_together(self) -> bool:
        return False


class RigStand(_Apart):
    """A device on a loop in real time."""

    def __init__(self, rig: Rig) -> None:
        self._rig = rig
        self.device: Device = self._rig.device
        self.finished, self.lost = self._rig.finished, self._rig.lost
        self.do, self.wait, self.close = self._rig.do, self._rig.wait, self._rig.close

    def request(self, known: Model, rows: int) -> Request:
        return self._rig.floats(known, *[[1.0, 2.0]] * rows)

    def pause(self) -> None:
        self._rig.pause(0.05)

    def kill(self, partition: str) -> None:
        os.kill(self._rig.device.workers()[partition], signal.SIGKILL)


class CpuStand(RigStand):
    """Worker processes and real time."""

    def __init__(self, folder: Path) -> None:
        super().__init__(Rig(settings(folder)))


class _Simulated(_Apart):
    """What was asked of a simulated device, and what it said."""

    def __init__(self, device: SimulatedDevice | AnsweringDevice) -> None:
        self.device: Device = device
        self.finished: list[WorkFinished] = []
        self.lost: list[PartitionLost] = []
        device.on_event(self.lost.append)
        self._requests = 0

    def do(self, work: Work) -> None:
        self.device.do(work, self.finished.append)


def run_until(clock: SimClock, until: Callable[[], bool]) -> None:
    end_ms = clock.now_ms() + 30_000.0
    while not until():
        assert clock.now_ms() < end_ms, "it did not happen in time"
        clock.run(clock.now_ms() + 1.0)


class SimulatedStand(_Simulated):
    """Profiles and virtual time."""

    def __init__(self, folder: Path, physics: Physics | None = None, ahead_ms: float = 0.0) -> None:
        self._clock = SimClock()
        profiles = {
            QUICK.key: line_profile(QUICK.key, 1.0, 0.1),
            SLOW.key: line_profile(SLOW.key, 400.0, 0.1),
        }
        gpu = Gpu("cpu0", "test", 2, 10**9, (50, 100), ahead_ms=ahead_ms)
        self._device = SimulatedDevice(gpu, self._clock, profiles, physics=physics)
        super().__init__(self._device)

    def request(self, known: Model, rows: int) -> Request:
        self._requests += 1
        return Request(self._requests, known.key, 0.0, 1e9, rows)

    def wait(self, until: Callable[[], bool]) -> None:
        run_until(self._clock, until)

    def pause(self) -> None:
        self._clock.run(self._clock.now_ms() + 50.0)

    def kill(self, partition: str) -> None:
        self._device.kill(partition)

    def close(self) -> None:
        self._device.close()


class AnsweringStand(_Simulated):
    """Profiles and real time: batches are answered, with nothing computed."""

    def __init__(self, folder: Path, ahead_ms: float = 0.0) -> None:
        self._loop = asyncio.new_event_loop()
        self._timer = WallTimer(self._loop)
        self._inputs = Arena.create(1 << 20)
        self._arenas = ArenaMap(os.getpid())
        self._arenas.add(self._inputs)
        self._answers = AnswerWriter(self._arenas, 1 << 20)
        gpu = Gpu("gpu0", "test", 2, 10**9, (50, 100), ahead_ms=ahead_ms)
        self._device = AnsweringDevice(gpu, self._timer, self._answers, _profile, Physics())
        super().__init__(self._device)

    def request(self, known: Model, rows: int) -> Request:
        self._requests += 1
        offset = self._inputs.alloc(16 * rows)
        assert offset is not None
        self._inputs.memory[offset : offset + 4] = self._requests.to_bytes(4, "little")
        sent = Tensor("x", "FP32", (rows, 4), Span(self._inputs.number, offset, 16 * rows))
        return Request(self._requests, known.key, 0.0, 1e9, rows, inputs=(sent,))

    def content(self, tensor: Tensor) -> bytes:
        """What an input or an output holds."""
        return bytes(self._arenas.view(tensor.span))

    def wait(self, until: Callable[[], bool]) -> None:
        end_s = time.monotonic() + 30.0
        while not until():
            assert time.monotonic() < end_s, "it did not happen in time"
            self._loop.run_until_complete(asyncio.sleep(0.001))

    def pause(self) -> None:
        self._loop.run_until_complete(asyncio.sleep(0.05))

    def kill(self, partition: str) -> None:
        self._device.simulated.kill(partition)

    def close(self) -> None:
        self._device.close()
        self._timer.close()
        self._answers.close()
        self._inputs.close()
        self._loop.close()


def _profile(model: Model) -> Profile:
    return line_profile(model.key, 1.0 if model.name == QUICK.name else 400.0, 0.1)


def ahead_stand(folder: Path) -> Stand:
    """The same, which begins batches by itself when those before them end."""
    return crowded_stand(folder, ahead_ms=1.0)


def crowded_stand(folder: Path, ahead_ms: float = 0.0) -> Stand:
    """A simulated device with everything on: neighbours, copies, host costs, jitter."""
    physics = Physics(
        costs=MECHANISMS["mig"],
        interference=ConstantFactor(1.3),
        link=HostLink(1_000.0),
        transfers={known.key: Transfer(100, 50) for known in (QUICK, SLOW)},
        host=HostCost(launch_ms=0.01, sync_ms=0.02),
        jitter=True,
    )
    return SimulatedStand(folder, physics, ahead_ms)
