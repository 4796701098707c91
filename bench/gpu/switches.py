"""What `preflight` chose for the parts after it: how green contexts are used, if at all."""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Final

from bench.gpu.rows import as_json
from interlace.device.cuda.backend.library_threads import LibraryContext
from interlace.device.cuda.green_contexts.atoms import Atoms

_FILE: Final = "switches.json"


@dataclass(frozen=True, slots=True)
class Switches:
    """``handle_context``: where cuDNN and cuBLAS make their handles for streams of green contexts,
    as ``CudaSettings`` has it. ``atoms`` are how many groups of how many SMs the driver makes, and
    what it leaves over; ``None`` if it was not asked. ``lacking`` says of a mechanism why it is not
    to be used. ``uuid`` is the GPU's: a later start may get another, which may be cut otherwise.
    """

    handle_context: LibraryContext = "primary"
    atoms: Atoms | None = None
    lacking: Mapping[str, str] = field(default_factory=dict)
    uuid: str = ""


#: Where nothing has been chosen.
USUAL: Final = Switches()


def choose(out: Path, dry: bool, switches: Switches) -> None:
    """Keep the choice for later parts, and for later runs with the same findings."""
    plain = {
        "dry": dry,
        "handle_context": switches.handle_context,
        "atoms": None if switches.atoms is None else asdict(switches.atoms),
        "lacking": dict(switches.lacking),
        "uuid": switches.uuid,
    }
    (out / _FILE).write_text(as_json(plain))


def chosen(out: Path, dry: bool) -> Switches:
    """The choice; what is usual if there is none."""
    try:
        plain = json.loads((out / _FILE).read_text())
        if plain["dry"] != dry:
            return USUAL
        context: LibraryContext = "green" if plain["handle_context"] == "green" else "primary"
        atoms = None if plain["atoms"] is None else Atoms(**plain["atoms"])
        return Switches(context, atoms, dict(plain["lacking"]), plain["uuid"])
    except (OSError, ValueError, KeyError, TypeError):
        return USUAL
