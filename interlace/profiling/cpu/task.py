"""What a process that measures on cores is asked."""

from __future__ import annotations

from typing import Final

import msgspec

from interlace.core.model import Model

#: What carries such a task out.
PROCESS: Final = "interlace.profiling.cpu.process_main"


class CoresTask(msgspec.Struct, frozen=True):
    """Models whose layers are measured on these cores, with their weights' files where told.

    The process reads ``models_dir`` and no files of others, if it is given.
    """

    cores: tuple[int, ...]
    models: tuple[Model, ...]
    weights_dir: str | None
    takes: int = 7
    models_dir: str = ""
