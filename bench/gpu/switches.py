"""What `preflight` chose for the parts after it: how green contexts are used, if at all."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, NamedTuple

import msgspec

from interlace.device.cuda.backend.base import LibraryContext
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


class _Kept(NamedTuple):
    dry: bool
    switches: Switches


#: Where nothing has been chosen.
USUAL: Final = Switches()


def choose(out: Path, dry: bool, switches: Switches) -> None:
    """Keep the choice for later parts, and for later runs with the same findings."""
    (out / _FILE).write_bytes(msgspec.json.encode(_Kept(dry, switches)))


def chosen(out: Path, dry: bool) -> Switches:
    """The choice; what is usual if there is none."""
    try:
        kept = msgspec.json.decode((out / _FILE).read_bytes(), type=_Kept)
    except (OSError, msgspec.MsgspecError):
        return USUAL
    return kept.switches if kept.dry == dry else USUAL
