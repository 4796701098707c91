"""The contract of completion: how the end of a batch is learnt without blocking a stream."""

from __future__ import annotations

from typing import Protocol

from interlace.device.cuda.driver.api import MappedBlock


class Completions(Protocol):
    """Ends of batches of all lanes of a process, in one readable descriptor.

    Every graph ends with the kernel ``signal``, which stores the batch's sequence number in the
    lane's flag. Sequence numbers of a lane grow by any positive step. ``submitted`` and ``drain``
    belong to the thread that launches.
    """

    def flag(self, lane_index: int) -> MappedBlock:
        """The lane's flag word (u64), written by the GPU, zero at first."""

    def submitted(self, lane_index: int, sequence: int, stream: int) -> None:
        """A batch was just launched on the lane's stream; call it right after the launch."""

    def fileno(self) -> int:
        """Readable when something may have ended."""

    def look(self, for_s: float) -> bool:
        """Whether ``drain`` has something; looks for that long, by reading memory alone.

        Before sleeping on the descriptor, which takes longer to wake up from. Where only that can
        tell, the answer is no, at once.
        """

    def drain(self) -> list[tuple[int, int]]:
        """(lane, sequence) of what ended since the last call, in order within a lane.

        Raises:
            CudaError: the GPU failed, and this way of completion asks it here already.
        """

    @property
    def busy(self) -> bool:
        """Whether anything was submitted and not drained; any thread may ask."""

    def check(self) -> None:
        """Ask the GPU whether it still works; call it now and then, a flag tells no error.

        Raises:
            CudaError: it failed; what was submitted and not drained will never end.
        """

    def close(self) -> None:
        """Stop; nothing is in flight any more, or the GPU failed.

        Raises:
            CudaError: it failed; threads and descriptors are given back all the same.
        """
