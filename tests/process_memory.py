"""Memory of a process as the kernel counts it."""

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class ProcessMemory:
    """``rss`` counts shared pages fully, ``pss`` each by the number of processes that map it.

    ``anonymous`` pages have no file behind them; ``private`` ones no other process maps.
    """

    rss_bytes: int
    pss_bytes: int
    anonymous_bytes: int
    private_bytes: int


def process_memory(pid: int | None = None) -> ProcessMemory:
    """Memory of a process, of this one by default. Takes milliseconds in a large process.

    Raises:
        OSError: no such process, or it belongs to somebody else.
    """
    name = "self" if pid is None else str(pid)
    fields = {}
    for line in Path(f"/proc/{name}/smaps_rollup").read_text().splitlines()[1:]:
        key, value = line.split(":")
        fields[key] = int(value.split()[0]) << 10
    private = fields["Private_Clean"] + fields["Private_Dirty"]
    return ProcessMemory(fields["Rss"], fields["Pss"], fields["Anonymous"], private)
