"""Inputs into a graph and outputs out of it: our kernels on a lane's stream, inside a capture."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from interlace.device.cuda.driver.api import Driver
from interlace.device.cuda.driver.kernels import Kernels
from interlace.device.cuda.memory.parameters import BatchParameters

_THREADS: Final = 512
_BEGIN_THREADS: Final = 256
#: A copy over the link is bound by bytes in flight: few blocks fill it, more would only crowd out
#: what computes beside it.
_GATHER_BLOCKS: Final = 16
_PUBLISH_BLOCKS: Final = 4
_THREAD_BYTES: Final = 64  #: four loads of 16 bytes in flight


class TransferKernels:
    """What begins a batch, brings its rows in and out, and tells its end.

    Raises:
        CudaError: of every method: the launch was refused.
    """

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
