"""What a measuring process is asked, and what it answers: it holds the GPU, its parent does not."""

from __future__ import annotations

import msgspec

from interlace.core.model import Model
from interlace.core.profile import LayerProfile, MemoryContention
from interlace.device.cuda.backend.library_threads import LibraryChoice


class ReaderPlacement(msgspec.Struct, frozen=True):
    """A model's share of the GPU, and those of readers beside it, one after the other."""

    share_pct: int
    beside_pct: tuple[int, ...]


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


class BatchStrains(msgspec.Struct, frozen=True):
    """One batch at one share beside readers."""

    batch: int
    share_pct: int
    strains: tuple[MemoryContention, ...]


class GpuFindings(msgspec.Struct, frozen=True):
    """What was found of one model, or why nothing was."""

    model: str
    layers: tuple[LayerProfile, ...] = ()
    strains: tuple[BatchStrains, ...] = ()
    error: str = ""
