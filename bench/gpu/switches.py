"""What `preflight` chose for the parts after it: how green contexts are used, if at all."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from bench.gpu.rows import as_json
from interlace.device.cuda.engine.threads import LibraryContext

_FILE: Final = "switches.json"


@dataclass(frozen=True, slots=True)
class Switches:
    """``library_context``: where cuDNN and cuBLAS make their handles for streams of green contexts,
    as ``CudaSettings`` has it. ``lacking`` says of a mechanism why it is not to be used.
    """

    library_context: LibraryContext = "primary"
    lacking: Mapping[str, str] = field(default_factory=dict)


def choose(out: Path, dry: bool, switches: Switches) -> None:
    """Keep the choice for later parts, and for later runs with the same findings."""
    plain = {
        "dry": dry,
        "library_context": switches.library_context,
        "lacking": dict(switches.lacking),
    }
    (out / _FILE).write_text(as_json(plain))


def chosen(out: Path, dry: bool) -> Switches:
    """The choice; what is usual if there is none."""
    try:
        plain = json.loads((out / _FILE).read_text())
        if plain["dry"] != dry:
            return Switches()
        context: LibraryContext = "green" if plain["library_context"] == "green" else "primary"
        return Switches(context, dict(plain["lacking"]))
    except (OSError, ValueError, KeyError, TypeError):
        return Switches()
