"""What changes from batch to batch, in memory that graphs read, and the kernels that read it."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from typing import Final

from interlace.device.cuda.driver.api import Driver
from interlace.device.cuda.driver.kernels import Kernels
from interlace.device.cuda.memory.mapped import MappedMemory, MappedWords

_ROWS: Final = 0
SEQUENCE: Final = 1
BEGAN: Final = 2
ENDED: Final = 3
_TABLES: Final = 4
#: Batches that can be described at once: one runs, one is launched behind it.
_BLOCKS: Final = 2
_WORD_BYTES: Final = 8
_GRANULE_BYTES: Final = 512  #: the driver rounds allocations up to it


class BatchParameters:
    """The parameters of one program on one lane, for two batches in turn.

    A block has these 64-bit words:

    * the number of rows and the sequence number;
    * when the batch began and ended, both written by the GPU, in ns of its clock;
    * the address of each row of each input, ``max_rows`` words an input;
    * the address that each output goes to;
    * the address of each lookup table that rows are read from.

    There are two blocks in mapped memory, and the GPU counts turns in a word: a batch may be
    described and launched while the one before it runs. A launch begins with the kernel ``begin``.
    It copies the block of this turn to one place in device memory. The properties are addresses in
    that place, as the GPU sees them; a graph knows them when it is captured.
    """

    def __init__(
        self,
        driver: Driver,
        memory: MappedMemory,
        inputs: int,
        outputs: int,
        max_rows: int,
        tables: int = 0,
    ) -> None:
        self._inputs, self._outputs, self.max_rows = inputs, outputs + tables, max_rows
        self._tables = outputs
        self._driver = driver
        self._count = _TABLES + inputs * max_rows + self._outputs
        self._turn = 0
        #: device memory
        self.nbytes = -(-self._count * _WORD_BYTES // _GRANULE_BYTES) * _GRANULE_BYTES
        with ExitStack() as undo:
            self.copy = driver.allocate(self.nbytes)
            undo.callback(driver.free, self.copy)
            self._words = MappedWords(memory, _BLOCKS * self._count + 1)
            undo.pop_all()

    @property
    def begins(self) -> tuple[int, int, int, int]:
        """The arguments of the kernel ``begin``."""
        turn_word = self._words.address(_BLOCKS * self._count)
        return self._words.address(0), self._count, turn_word, self.copy

    @property
    def rows_word(self) -> int:
        return self.copy + _ROWS * _WORD_BYTES

    def table(self, place: int) -> int:
        """Where the addresses of an input's rows begin."""
        return self.copy + (_TABLES + place * self.max_rows) * _WORD_BYTES

    def target_word(self, place: int) -> int:
        """Where the address lies that an output goes to."""
        return self.copy + (_TABLES + self._inputs * self.max_rows + place) * _WORD_BYTES

    def table_word(self, place: int) -> int:
        """Where the address of a lookup table lies."""
        return self.target_word(self._tables + place)

    def write(
        self, sequence: int, rows: int, sources: Sequence[Sequence[int]], targets: Sequence[int]
    ) -> None:
        """Describe the next batch: per input the address of each row, per output its target.

        The batch before the last one has ended. Until ``launched`` another may take its place.

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
        words, first = self._words, self._first(self._turn)
        at = first + _TABLES
        for addresses in sources:
            words.put_all(at, addresses)
            at += self.max_rows
        words.put_all(at, targets)
        words.put(first + _ROWS, rows)
        words.put(first + SEQUENCE, sequence)

    def launched(self) -> int:
        """The batch described last was launched. Returns its turn."""
        self._turn += 1
        return self._turn - 1

    def times_ns(self, turn: int) -> tuple[int, int]:
        """When the batch of a turn began and ended, by the GPU's clock; it has ended."""
        first = self._first(turn)
        return self._words.get(first + BEGAN), self._words.get(first + ENDED)

    def close(self) -> None:
        """Give the memory back; the graphs that read it are destroyed."""
        with ExitStack() as steps:  # both are tried
            steps.callback(self._words.close)
            steps.callback(self._driver.free, self.copy)

    def _first(self, turn: int) -> int:
        return turn % _BLOCKS * self._count


def row_addresses(first: int, rows: int, row_bytes: int) -> Sequence[int]:
    """The address of each of some rows without gaps."""
    if not row_bytes:
        return [first] * rows
    return range(first, first + rows * row_bytes, row_bytes)


_THREADS: Final = 512
_BEGIN_THREADS: Final = 256
#: A copy over the link is bound by bytes in flight: few blocks fill it, more would only crowd out
#: what computes beside it.
_GATHER_BLOCKS: Final = 16
_PUBLISH_BLOCKS: Final = 4
_THREAD_BYTES: Final = 64  #: four loads of 16 bytes in flight


class TransferKernels:
    """What begins a batch, brings its rows in and out, and tells its end."""

    def __init__(self, driver: Driver, kernels: Kernels) -> None:
        self._driver = driver
        self._kernels = kernels

    def begin(self, stream: int, parameters: BatchParameters) -> None:
        """First of all: everything launched behind it reads what is described for its batch."""
        one, block = (1, 1, 1), (_BEGIN_THREADS, 1, 1)
        self._driver.launch(self._kernels.begin, one, block, stream, parameters.begins)

    def gather(
        self, stream: int, parameters: BatchParameters, place: int, target: int, row_bytes: int
    ) -> None:
        """Copy a batch's rows from where each was received to one place (GPU-DMA): an input of
        ``parameters.max_rows`` rows at ``target``.

        The addresses are read when the graph runs; rows of padding become zeroes.
        """
        rows = parameters.max_rows
        if row_bytes:
            table, rows_word = parameters.table(place), parameters.rows_word
            self.fetch(stream, table, rows_word, target, row_bytes, rows)

    def fetch(
        self, stream: int, table: int, enough_word: int, target: int, row_bytes: int, rows: int
    ) -> None:
        """Copy rows from the addresses in a table to one place, also outside of any graph.

        ``enough_word`` is the address of a word with the number of real rows.
        """
        words = (table, enough_word, target, row_bytes, rows)
        grid = _grid(rows * row_bytes, _GATHER_BLOCKS)
        self._driver.launch(self._kernels.gather_rows, grid, (_THREADS, 1, 1), stream, words)

    def finish(
        self,
        stream: int,
        parameters: BatchParameters,
        outputs: Sequence[tuple[int, int]],
        flag: int,
    ) -> None:
        """Copy the real rows of ``outputs`` (address, bytes of a row) to where the host reads them,
        and tell it, by the batch's number in a flag, that everything before is done."""
        for place, (source, row_bytes) in enumerate(outputs):
            if row_bytes:
                words = (source, parameters.target_word(place), parameters.rows_word, row_bytes)
                grid = _grid(parameters.max_rows * row_bytes, _PUBLISH_BLOCKS)
                self._driver.launch(self._kernels.publish, grid, (_THREADS, 1, 1), stream, words)
        one = (1, 1, 1)
        self._driver.launch(self._kernels.finish, one, one, stream, (flag, parameters.copy))

    def signal(self, stream: int, flag: int, sequence_word: int) -> None:
        """Tell the host, by the number in a word, that everything before is done."""
        one = (1, 1, 1)
        self._driver.launch(self._kernels.signal, one, one, stream, (flag, sequence_word))


def _grid(nbytes: int, most: int) -> tuple[int, int, int]:
    return max(1, min(most, -(-nbytes // (_THREADS * _THREAD_BYTES)))), 1, 1
