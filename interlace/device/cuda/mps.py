"""A GPU partitioned by MPS: a process per partition, limited to a percentage of the SMs."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryFile, gettempdir, mkdtemp
from typing import Final

from interlace.core.hardware import Gpu, Trait
from interlace.device.cuda.discovery import DiscoveredGpu
from interlace.device.cuda.settings import AHEAD_MS, BASE_TRAITS, CudaSettings, model_memory_bytes
from interlace.device.cuda.streams import ONE_LANE

PROGRAM: Final = "nvidia-cuda-mps-control"
#: Any percentage is legal; finer steps differ by less than profiles do from day to day.
SHARES_PCT: Final = tuple(range(5, 101, 5))

#: Reorganisation is overlapped by a second process that starts and loads while the first serves
#: (gpulet, section 4.3).
_TRAITS: Final = BASE_TRAITS | {Trait.GRAPHS, Trait.OVERLAPPED_REORGANISATION}
_ANSWER_S: Final = 10.0
_WORDS_CHARS: Final = 500
_LOOK_S: Final = 0.1
#: Folders of daemons; where process numbers count, and that of who started it, come next.
_PREFIX: Final = "interlace-mps-"


class MpsError(Exception):
    """The control daemon of MPS cannot be used, and why."""


class MpsControl:
    """A control daemon of our own, in folders of our own: another one on the machine is left alone.

    The GPU's compute mode is not touched; MPS works in the default mode. The daemon starts a server
    when the first client comes.
    """

    def __init__(self, uuid: str) -> None:
        """For one GPU; nothing is started."""
        self._uuid = uuid
        self._folder: Path | None = None

    def start(self) -> None:
        """Start the daemon, and wait until it answers; twice is once.

        Raises:
            MpsError: there is no such program, or it does not start.
        """
        if self._folder is not None:
            return
        quit_abandoned()
        self._folder = Path(mkdtemp(prefix=f"{_ours()}{os.getpid()}-"))
        for name in ("pipe", "log"):
            (self._folder / name).mkdir()
        try:
            _run_control(self._settings(), "-d")
            self._wait()
        except MpsError:
            self.stop()
            raise

    def environment(self) -> Mapping[str, str]:
        """What makes a process a client of this daemon; it is started."""
        assert self._folder is not None, "the daemon is not started"
        return _pipes(self._folder)

    def stop(self) -> None:
        """End the daemon and its server; all clients are gone. It never raises."""
        if self._folder is None:
            return
        _quit(self._folder, self._settings())
        self._folder = None

    def _settings(self) -> Mapping[str, str]:
        return {"CUDA_VISIBLE_DEVICES": self._uuid, **self.environment()}

    def _wait(self) -> None:
        """Until it answers, which it may not do at once, and at most for a while."""
        until_s = time.monotonic() + _ANSWER_S
        while True:
            try:
                _run_control(self._settings(), said="get_server_list\n")
                return
            except MpsError:
                if time.monotonic() > until_s:
                    raise
            time.sleep(_LOOK_S)


def quit_abandoned() -> list[Path]:
    """End daemons whose process is gone without having ended them; their folders, now removed.

    Killed with their part, servers leave a daemon behind: it lives in a session of its own.
    """
    found = []
    for folder in sorted(Path(gettempdir()).glob(f"{_ours()}*-*")):
        owner = folder.name.removeprefix(_ours()).partition("-")[0]
        with contextlib.suppress(OSError):  # somebody else was quicker
            mine = not folder.is_symlink() and folder.stat().st_uid == os.getuid()
            if mine and owner.isdigit() and not Path("/proc", owner).exists():
                _quit(folder, _pipes(folder))
                found.append(folder)
    return found


def _ours() -> str:
    """How folders begin whose processes this one can see: not those of another container."""
    return f"{_PREFIX}{Path('/proc/self/ns/pid').stat().st_ino}-"


def _pipes(folder: Path) -> Mapping[str, str]:
    """What makes a process talk to the daemon of a folder."""
    return {
        "CUDA_MPS_PIPE_DIRECTORY": str(folder / "pipe"),
        "CUDA_MPS_LOG_DIRECTORY": str(folder / "log"),
    }


def _quit(folder: Path, settings: Mapping[str, str]) -> None:
    with contextlib.suppress(MpsError):  # dead already, or nothing can be done about it here
        _run_control(settings, said="quit -t 5\n")
    shutil.rmtree(folder, ignore_errors=True)


def _run_control(settings: Mapping[str, str], *arguments: str, said: str = "") -> None:
    """Run the control program, which may leave a daemon behind.

    Raises:
        MpsError: it is not installed, fails, or does not end.
    """
    command = ["env", *(f"{key}={value}" for key, value in settings.items()), PROGRAM, *arguments]
    # Into a file: a daemon keeps what it inherits, and the end of a pipe would never come.
    with TemporaryFile() as out:
        try:
            code = subprocess.run(
                command, input=said.encode(), stdout=out, stderr=out, timeout=_ANSWER_S, check=False
            ).returncode
        except subprocess.TimeoutExpired as error:
            raise MpsError(f"{PROGRAM} did not answer within {_ANSWER_S:g} s") from error
        out.seek(0)
        words = out.read().decode(errors="replace").strip()
    if code == 127:
        raise MpsError(f"{PROGRAM} is not installed: it comes with the GPU's driver")
    if code != 0:
        raise MpsError(f"{PROGRAM} failed with code {code}: {words[:_WORDS_CHARS]}")


def lacking(found: DiscoveredGpu) -> str:
    """Why a GPU cannot be partitioned so; empty if it can."""
    if not found.mig and found.capability < (7, 0):
        have = ".".join(map(str, found.capability))
        return f"GPU {found.number} has compute capability {have}; MPS limits SMs from 7.0"
    return found.mig_refusal


def mps_gpu(found: DiscoveredGpu, gpu_id: str) -> Gpu:
    """The accelerator that such a device is; its profiles are kept apart from other mechanisms'."""
    memory_bytes = model_memory_bytes(found.memory_bytes)
    return Gpu(
        gpu_id, f"{found.kind}-mps", found.sms, memory_bytes, SHARES_PCT, _TRAITS, ahead_ms=AHEAD_MS
    )


def mps_settings(found: DiscoveredGpu, gpu_id: str, control: MpsControl) -> CudaSettings:
    """The settings of such a device; ``control`` is started, and stopped with the device."""

    def environment(share_pct: int) -> Mapping[str, str]:
        return {
            "CUDA_VISIBLE_DEVICES": found.uuid,
            "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": str(share_pct),
            **control.environment(),
        }

    gpu = mps_gpu(found, gpu_id)
    plain = CudaSettings(gpu, found.uuid, ONE_LANE, private=True)
    return replace(plain, environment=environment, at_close=control.stop)
