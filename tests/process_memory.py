"""Memory of a process as the kernel counts it."""

from pathlib import Path
from typing import NamedTuple


class ProcessMemory(NamedTuple):
    """``rss`` counts shared pages fully, ``pss`` by who maps them; ``private`` are not shared."""

    rss_bytes: int
    pss_bytes: int
    anonymous_bytes: int
    private_bytes: int


def process_memory(pid: int | str = "self") -> ProcessMemory:
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()[1:]
    fields = {line.split(":")[0]: int(line.split()[1]) << 10 for line in lines}
    private = fields["Private_Clean"] + fields["Private_Dirty"]
    return ProcessMemory(fields["Rss"], fields["Pss"], fields["Anonymous"], private)
