"""What changes from batch to batch, in memory that graphs read; their arguments never change."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from interlace.device.cuda.memory.mapped import MappedMemory, Words

_ROWS: Final = 0
_SEQUENCE: Final = 1
_TABLES: Final = 2


class Parameters:
    """The parameter block of one program on one lane, in 64-bit words.

    Word 0 is the number of rows, word 1 the sequence number; then come the address of each row of
    each input (``max_rows`` words an input), then the address that each output goes to. The
    properties are addresses as the GPU sees them, known when a graph is captured. A block describes
    one batch at a time: write the next one when that has ended.
    """

    def __init__(self, memory: MappedMemory, inputs: int, outputs: int, max_rows: int) -> None:
        self._inputs, self._outputs, self.max_rows = inputs, outputs, max_rows
        self._words = Words(memory, _TABLES + inputs * max_rows + outputs)

    @property
    def rows_word(self) -> int:
        return self._words.address(_ROWS)

    @property
    def sequence_word(self) -> int:
        return self._words.address(_SEQUENCE)

    def table(self, place: int) -> int:
        """Where the addresses of an input's rows begin."""
        return self._words.address(_TABLES + place * self.max_rows)

    def target_word(self, place: int) -> int:
        """Where the address lies that an output goes to."""
        return self._words.address(_TABLES + self._inputs * self.max_rows + place)

    def write(
        self,
        sequence: int,
        rows: int,
        sources: Sequence[Sequence[int]],
        targets: Sequence[int],
    ) -> None:
        """Describe the next batch: per input the address of each row, per output its target.

        Raises:
            ValueError: more rows than the block has room for, or not as many inputs, addresses or
                outputs as it was made for.
        """
        if not 0 <= rows <= self.max_rows:
            raise ValueError(f"{rows} rows for a program of at most {self.max_rows}")
        if (len(sources), len(targets)) != (self._inputs, self._outputs):
            raise ValueError(
                f"{len(sources)} inputs and {len(targets)} outputs for a program of "
                f"{self._inputs} and {self._outputs}"
            )
        if any(len(addresses) != rows for addresses in sources):
            raise ValueError(f"{[len(one) for one in sources]} addresses for {rows} rows")
        words, at = self._words, _TABLES
        for addresses in sources:
            words.put_all(at, addresses)
            at += self.max_rows
        words.put_all(at, targets)
        words.put(_ROWS, rows)
        words.put(_SEQUENCE, sequence)

    def close(self) -> None:
        """Give the memory back; the graphs that read it are destroyed."""
        self._words.close()


def row_addresses(first: int, rows: int, row_bytes: int) -> Sequence[int]:
    """The address of each of some rows without gaps."""
    if not row_bytes:
        return [first] * rows
    return range(first, first + rows * row_bytes, row_bytes)
