"""HPACK's dynamic table, as hpack keeps it. Not compiled: its base class is another package's."""

from __future__ import annotations

from hpack.table import HeaderTable


class CountedHeaderTable(HeaderTable):
    """A dynamic table that counts what is added to it."""

    def __init__(self) -> None:
        super().__init__()
        self.added = 0

    def add(self, name: bytes, value: bytes) -> None:
        self.added += 1
        super().add(name, value)

    @property
    def state(self) -> tuple[int, int]:
        """Equal before and after a block that means the same whenever it comes."""
        return self.added, self.maxsize
