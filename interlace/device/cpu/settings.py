"""What a CPU device is made of, and how long its work may take."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from interlace.core.model import Format
from interlace.device.process.link import WorkTimeouts
from interlace.device.process.wire import WorkerSetup
from interlace.shm.arena import Arena

#: What a worker that the fork server forks runs.
WORKER: Final = "interlace.device.cpu.worker:work"
_FORMATS: Final = "interlace.formats"
_TORCH: Final = f"{_FORMATS}.torch_runner"
#: What each format imports, also late, when it opens a model: loaded in the fork server, so that
#: workers share the pages (110 MB and 3 s per worker for transformers).
_FORMAT_MODULES: Final[Mapping[Format, tuple[str, ...]]] = {
    Format.ONNX: (f"{_FORMATS}.onnx",),
    Format.TORCHSCRIPT: (_TORCH, f"{_FORMATS}.torchscript"),
    Format.EXPORTED: (
        _TORCH,
        f"{_FORMATS}.exported",
        "torch._export.serde.serialize",
        "torch._functorch.partitioners",
    ),
    Format.HUGGINGFACE: (
        _TORCH,
        f"{_FORMATS}.huggingface",
        "transformers.modeling_utils",
        "transformers.modeling_layers",
        "transformers.masking_utils",
        "transformers.generation.utils",
    ),
    Format.FACTORY: (_TORCH, f"{_FORMATS}.factory"),
    Format.PYTHON: (f"{_FORMATS}.python_backend.runner",),
    Format.PROFILE: (),
    Format.TENSORRT: (),
}


@dataclass(frozen=True, slots=True)
class CpuSettings:
    """What a CPU device is made of.

    ``memory_bytes`` is what models may hold. ``weights_bytes`` of it are for swapped weights (0:
    all stay resident). ``host_weights_bytes`` is the most that the page cache keeps of the files of
    swapped weights (``None``: the system decides). ``weights_dir`` is the folder of shared weights,
    ``None`` to keep weights private per worker. ``arena_bytes`` is the output memory of one worker,
    taken only as it is used; ``patience_s`` is how long a batch waits for it. ``opener`` names
    ``open_model`` as ``module:function``. ``preload`` are the modules that the fork server imports
    for each format. Workers are confined: of all data they may read the repository ``models_dir``
    and ``files_dir`` only. If the first is empty they are not confined.
    """

    cores: tuple[int, ...]
    memory_bytes: int
    weights_dir: str | None = None
    id: str = "cpu0"
    arena_bytes: int = 1 << 30
    patience_s: float = 5.0
    limits: WorkTimeouts = field(default_factory=WorkTimeouts)
    preload: Mapping[Format, tuple[str, ...]] = field(default_factory=lambda: _FORMAT_MODULES)
    opener: str = "interlace.formats:open_model"
    weights_bytes: int = 0
    host_weights_bytes: int | None = None
    models_dir: str = ""
    files_dir: str = ""

    def setup(
        self,
        name: str,
        cores: tuple[int, ...],
        arena: Arena,
        background: bool = False,
        quiet: bool = False,
        weights_arena: int = 0,
    ) -> WorkerSetup:
        """The first frame of a worker of this process."""
        return WorkerSetup(
            name,
            cores,
            os.getpid(),
            arena.number,
            self.opener,
            self.weights_dir,
            self.patience_s,
            background,
            quiet,
            weights_arena,
            self.models_dir,
            self.files_dir,
        )
