"""A GPU parted by MPS: a process per partition, held to a percentage of the SMs."""

from __future__ import annotations

import contextlib
import shutil
import subprocess
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from tempfile import mkdtemp
from typing import Final

from interlace.core.hardware import Gpu, Trait
from interlace.device.cuda.discovery import Found
from interlace.device.cuda.driver.api import Driver
from interlace.device.cuda.partitions.lanes import Lanes
from interlace.device.cuda.partitions.whole_lanes import WholeLanes
from interlace.device.cuda.settings import CudaSettings, for_models

LANES: Final = "interlace.device.cuda.mps:make_lanes"
PROGRAM: Final = "nvidia-cuda-mps-control"
#: Any percentage is legal; finer steps differ by less than profiles do from day to day.
SHARES_PCT: Final = tuple(range(5, 101, 5))

#: Reorganisation is overlapped by a second process that starts and loads while the first serves
#: (gpulet, section 4.3).
TRAITS: Final = frozenset(
    {
        Trait.MULTI_MODEL,
        Trait.SHARED_WEIGHTS,
        Trait.GATHER_DMA,
        Trait.SLOW_START,
        Trait.LIGHT_SYNC,
        Trait.GRAPHS,
        Trait.OVERLAPPED_REORGANISATION,
    }
)
_ANSWER_S: Final = 10.0


class MpsError(Exception):
    """The control daemon of MPS cannot be used, and why."""


class MpsControl:
    """A control daemon of our own, in folders of our own: another one on the machine is left alone.

    The GPU's compute mode is not touched; MPS works in the default mode. The daemon starts a server
    when the first client comes.
    """

    def __init__(self, uuid: str, program: str = PROGRAM) -> None:
        """For one GPU; nothing is started."""
        self._uuid = uuid
        self._program = program
        self._folder: Path | None = None

    def start(self) -> None:
        """Start the daemon; twice is once.

        Raises:
            MpsError: there is no such program, or it does not start.
        """
        if self._folder is not None:
            return
        self._folder = Path(mkdtemp(prefix="interlace-mps-"))
        for name in ("pipe", "log"):
            (self._folder / name).mkdir()
        try:
            self._ask("-d")
        except MpsError:
            self._remove()
            raise

    def environment(self) -> Mapping[str, str]:
        """What makes a process a client of this daemon; it is started."""
        assert self._folder is not None, "the daemon is not started"
        return {
            "CUDA_MPS_PIPE_DIRECTORY": str(self._folder / "pipe"),
            "CUDA_MPS_LOG_DIRECTORY": str(self._folder / "log"),
        }

    def stop(self) -> None:
        """End the daemon and its server; all clients are gone. It never raises."""
        if self._folder is None:
            return
        with contextlib.suppress(MpsError):  # dead already, or nothing can be done about it here
            self._ask(said="quit -t 5\n")
        self._remove()

    def _ask(self, *arguments: str, said: str = "") -> None:
        chosen = {"CUDA_VISIBLE_DEVICES": self._uuid, **self.environment()}
        settings = [f"{key}={value}" for key, value in chosen.items()]
        try:
            answer = subprocess.run(
                ["env", *settings, self._program, *arguments],
                input=said,
                capture_output=True,
                text=True,
                timeout=_ANSWER_S,
                check=False,
            )
        except subprocess.TimeoutExpired as error:
            raise MpsError(f"{self._program} did not answer within {_ANSWER_S:g} s") from error
        if answer.returncode == 127:
            raise MpsError(f"{self._program} is not installed: it comes with the GPU's driver")
        if answer.returncode != 0:
            words = (answer.stderr or answer.stdout).strip()
            raise MpsError(f"{self._program} failed with code {answer.returncode}: {words}")

    def _remove(self) -> None:
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)
            self._folder = None


def lacking(found: Found) -> str:
    """Why a GPU cannot be parted so; empty if it can."""
    if found.mig:
        return f"GPU {found.number} has MIG switched on: its instances are devices of their own"
    if found.capability < (7, 0):
        have = ".".join(map(str, found.capability))
        return f"GPU {found.number} has compute capability {have}; MPS limits SMs from 7.0"
    return ""


def mps_gpu(found: Found, gpu_id: str) -> Gpu:
    """The accelerator that such a device is; its profiles are kept apart from other mechanisms'."""
    memory_bytes = for_models(found.memory_bytes)
    return Gpu(gpu_id, f"{found.kind}-mps", found.sms, memory_bytes, SHARES_PCT, TRAITS)


def mps_settings(found: Found, gpu_id: str, control: MpsControl) -> CudaSettings:
    """The settings of such a device; ``control`` is started, and stopped with the device."""

    def environment(share_pct: int) -> Mapping[str, str]:
        return {
            "CUDA_VISIBLE_DEVICES": found.uuid,
            "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": str(share_pct),
            **control.environment(),
        }

    gpu = mps_gpu(found, gpu_id)
    plain = CudaSettings(gpu, found.uuid, LANES, private=True)
    return replace(plain, environment=environment, at_close=control.stop)


def make_lanes(driver: Driver) -> Lanes:
    """In the process of one partition: one lane on the SMs that MPS leaves it."""
    return WholeLanes(driver)
