"""Other GPUs of a fake GPU's process: links of their own, and memory that it reads."""

from collections import Counter
from collections.abc import Callable, Sequence

from interlace.device.cuda.driver.api import CopyGroup, CudaError, Driver
from tests.device.cuda.fake.faults import Misuse


class PeerGpus:
    """Which GPU streams, events and memory are of, 0 the process's own. For tests:

    * ``count``: how many GPUs the process sees beside its own;
    * ``link_bytes``: what was copied from the host, by the GPU over whose link it came.
    """

    def __init__(self) -> None:
        self.count = 0
        self.link_bytes: Counter[int] = Counter()
        self._of: dict[int, int] = {}  # streams, events
        self._memory: dict[int, tuple[int, int]] = {}  # bytes and GPU by address

    def own(self, handle: int, place: int) -> int:
        self._of[handle] = place
        return handle

    def hold(self, address: int, nbytes: int, place: int) -> int:
        self._memory[address] = nbytes, place
        return address

    def recorded(self, event: int, stream: int) -> None:
        """
        Raises:
            CudaError: they are of two GPUs.
        """
        if self._of.get(event, 0) != self._of.get(stream, 0):
            raise CudaError("cuEventRecord", "CUDA_ERROR_INVALID_HANDLE", "of another context")

    def copied(self, target: int, nbytes: int, stream: int, from_host: bool) -> None:
        """
        Raises:
            Misuse: by the copy engine of another GPU than the one that should.
        """
        here, there = self._of.get(stream, 0), self._place(target)
        if here != there:
            raise Misuse(f"GPU {here} copies to GPU {there}, over a link that is not its own")
        if from_host:
            self.link_bytes[here] += nbytes

    def _place(self, address: int) -> int:
        for begin, (nbytes, place) in self._memory.items():
            if begin <= address < begin + nbytes:
                return place
        return 0


class FakePeer:
    """``PeerGpu``."""

    def __init__(self, owner: Driver, gpus: PeerGpus, place: int) -> None:
        if place > gpus.count:
            raise CudaError("cuDeviceGet", "CUDA_ERROR_INVALID_DEVICE")
        self._owner = owner
        self._gpus = gpus
        self._place = place
        self.free: Callable[[int], None] = owner.free
        self.destroy_stream: Callable[[int], None] = owner.destroy_stream
        self.destroy_event: Callable[[int], None] = owner.destroy_event
        self.synchronize: Callable[[int], None] = owner.synchronize
        self.copy_groups: Callable[[Sequence[CopyGroup], int], None] = owner.copy_groups

    def allocate(self, nbytes: int) -> int:
        return self._gpus.hold(self._owner.allocate(nbytes), nbytes, self._place)

    def stream(self) -> int:
        return self._gpus.own(self._owner.stream(), self._place)

    def event(self) -> int:
        return self._gpus.own(self._owner.event(), self._place)

    def close(self) -> None:
        return
