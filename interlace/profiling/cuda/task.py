"""What a process that holds a GPU is asked to measure."""

from __future__ import annotations

from typing import Final

import msgspec

from interlace.core.model import Model
from interlace.device.cuda.backend.library_threads import LibraryChoice


class ReaderPlacement(msgspec.Struct, frozen=True):
    """A model's share of the GPU, and those of readers beside it, one after the other."""

    share_pct: int
    beside_pct: tuple[int, ...]


#: What carries such a task out.
PROCESS: Final = "interlace.profiling.cuda.examine"


class GpuTask(msgspec.Struct, frozen=True):
    """Models to take apart on one GPU.

    ``backend`` and ``lanes`` are ``module:function``, as in ``GpuSetup``; ``gpu`` is a UUID;
    ``handle_context`` as in ``CudaSettings``. ``flush_bytes`` is more than its L2 holds (50 MiB on
    an H100).
    """

    gpu: str
    backend: str
    lanes: str
    models: tuple[Model, ...]
    layers: bool = False
    places: tuple[ReaderPlacement, ...] = ()  #: where readers are set beside the models
    flush_bytes: int = 128 << 20
    handle_context: LibraryChoice = "auto"
