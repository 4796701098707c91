"""`--device simulated`: accelerators that are not here, in real time, by models' profiles."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from interlace.assembly.accelerators import DeviceGroup
from interlace.core.errors import Reason, ServeError
from interlace.core.gpu_kinds import GPU_KINDS, uniform_fleet
from interlace.core.hardware import Gpu
from interlace.core.model import Description, Model
from interlace.core.tables import did_you_mean
from interlace.core.user_errors import InputError
from interlace.device.simulated.answers import AnsweringDevice, AnswerWriter, WallTimer
from interlace.device.simulated.physics import physics_of
from interlace.device.simulated.weights import WeightLinks
from interlace.profiling.packaged import SimulatedProfiles
from interlace.shm.arena import ArenaMap

_LOG: Final = logging.getLogger(__name__)
NAME: Final = "simulated"
#: Address space for answers that are not delivered yet; memory is taken as it is used.
_ANSWERS_BYTES: Final = 2 << 30


@dataclass(frozen=True, slots=True)
class SimulatedAccelerators:
    """The accelerators that were asked for; nothing is started."""

    gpus: tuple[Gpu, ...]
    profiles: SimulatedProfiles

    def with_weights(
        self, weights_bytes: int, host_bytes: int | None = None
    ) -> SimulatedAccelerators:
        """Return a copy with ``weights_bytes`` reserved for swapping.

        Raises:
            InputError: the accelerators have too little memory.
        """
        if host_bytes is not None:
            raise InputError(
                "--host-memory bounds the page cache's weights: only --device cpu has any"
            )
        least = min(gpu.memory_bytes for gpu in self.gpus)
        if weights_bytes >= least:
            raise InputError(
                f"--memory of {weights_bytes / 1e6:.0f} MB: a {self.gpus[0].kind} has "
                f"{least / 1e6:.0f} MB"
            )
        gpus = tuple(replace(gpu, weights_bytes=weights_bytes) for gpu in self.gpus)
        return replace(self, gpus=gpus)

    def make(
        self,
        loop: asyncio.AbstractEventLoop,
        arenas: ArenaMap,
        inputs: Sequence[int],
        files_dir: str = "",
    ) -> DeviceGroup:
        """The devices, all on one timer of the system: none has a process or a thread."""
        _LOG.warning(
            "%d simulated %s: nothing is computed; batches take the time that profiles say, and "
            "answers are digests of their requests",
            len(self.gpus),
            self.gpus[0].kind,
        )
        timer, answers = WallTimer(loop), AnswerWriter(arenas, _ANSWERS_BYTES)
        links = WeightLinks()
        made = [
            AnsweringDevice(gpu, timer, answers, self.profiles.profile, physics_of(gpu))
            for gpu in self.gpus
        ]
        for one in made:
            one.simulated.weights.links = links

        def close() -> None:
            for one in made:
                one.close()
            timer.close()
            answers.close()

        return DeviceGroup(made, _described, close)


def simulated_accelerators(
    kind: str | None, count: str | None, folder: Path
) -> SimulatedAccelerators:
    """``count`` accelerators (1 if none is given) of a kind; ``folder`` is where profiles are kept.

    Raises:
        InputError: no such kind, or not a number of them.
    """
    known = ", ".join(GPU_KINDS)
    if kind is None:
        raise InputError(f"--device {NAME}: --gpu is missing; expected one of {known}")
    if kind not in GPU_KINDS:
        raise InputError(f"--gpu {kind}{did_you_mean(kind, GPU_KINDS)}: expected one of {known}")
    number = "1" if count is None else count
    if not (number.isdecimal() and 1 <= int(number) <= 1024):
        raise InputError(f"--gpus {count} with --device {NAME}: expected how many, 1 to 1024")
    gpus = uniform_fleet(GPU_KINDS[kind], int(number)).gpus
    return SimulatedAccelerators(gpus, SimulatedProfiles(folder, gpus[0]))


async def _described(model: Model) -> Description:
    """What config.pbtxt says of a model: nothing opens it.

    Raises:
        ServeError: it does not say all.
    """
    told = model.signature
    if not (told.inputs and told.outputs):
        raise ServeError(
            Reason.BACKEND,
            f"{model.path}/../config.pbtxt says not every input and output with name, data_type "
            f"and dims; with --device {NAME} nothing else does",
        )
    return Description(told)
