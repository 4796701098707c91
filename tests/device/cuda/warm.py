"""GPU processes for tests, forked from one that has torch loaded."""

import asyncio
from typing import Final

from bench.gpu.forking import PRELOAD, ForkLauncher
from interlace.device.cuda.processes import LaunchSpec
from interlace.shm.children import RunningProcess

_PRELOAD: Final = (
    *PRELOAD,
    "tests.device.cuda.fake.capture",
    "tests.device.cuda.torch_models",
)


class WarmLauncher(ForkLauncher):
    """With the fake loaded, too. ``begun`` are all processes ever started."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__(loop, _PRELOAD)
        self.begun: list[RunningProcess] = []

    def begin(self, order: LaunchSpec) -> RunningProcess:
        self.begun.append(super().begin(order))
        return self.begun[-1]
