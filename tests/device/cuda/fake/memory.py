"""Memory of the fake GPU: real addresses, each access checked against what is allocated."""

import bisect
import ctypes
import os
from dataclasses import dataclass
from typing import Final

from interlace.device.cuda.driver.api import CudaError, MappedBlock
from tests.device.cuda.fake import mapping

_ADDRESSES_BYTES: Final = 1 << 38  # never given twice, so that what is freed stays recognisable
_ALIGN_BYTES: Final = 512
_PAGE: Final = 4096
_PUNCH_HOLE: Final = 3
_LIBC: Final = ctypes.CDLL(None, use_errno=True)
_LIBC.fallocate.argtypes = [ctypes.c_int, ctypes.c_int, ctypes.c_long, ctypes.c_long]


@dataclass
class Range:
    """Addresses that the driver knows: device memory, or one side of mapped memory."""

    begin: int
    nbytes: int
    kind: str  #: "device", "mapped", "host" (the host's side: not for kernels) or "opened"
    writable: bool = True
    live: bool = True


class Memory:
    """Device memory is a sparse file of memory, so that other processes can open parts of it.

    Addresses that nobody registered are taken for the framework's device memory if they are
    anonymous memory (CPU tensors), and are illegal if they belong to a file: arenas must be
    registered, and kernels must use the device's side of them.
    """

    def __init__(self, total_bytes: int) -> None:
        self.total_bytes = total_bytes
        self.used_bytes = 0
        self.others_bytes = 0  #: what other processes hold
        self._fd = os.memfd_create("fake-gpu", os.MFD_CLOEXEC)
        os.ftruncate(self._fd, _ADDRESSES_BYTES)
        self._base = mapping.map_shared(self._fd, _ADDRESSES_BYTES)
        self._next = self._base
        self._begins: list[int] = []
        self._ranges: list[Range] = []
        self._mapped: dict[MappedBlock, list[Range]] = {}
        self._areas: list[mapping.Area] = []

    @property
    def free_bytes(self) -> int:
        return self.total_bytes - self.used_bytes - self.others_bytes

    # --------------------------------------------------------------------------- device memory
    def allocate(self, nbytes: int) -> int:
        size = -(-nbytes // _ALIGN_BYTES) * _ALIGN_BYTES
        if nbytes <= 0:
            raise CudaError("cuMemAlloc", "CUDA_ERROR_INVALID_VALUE")
        if size > self.free_bytes:
            raise CudaError("cuMemAlloc", "CUDA_ERROR_OUT_OF_MEMORY")
        address = self._next
        self._next += -(-(size + _PAGE) // _PAGE) * _PAGE  # a gap, so that overruns are seen
        self._add(Range(address, size, "device"))
        self.used_bytes += size
        return address

    def free(self, address: int) -> None:
        found = self._at(address)
        if found is None or found.kind != "device" or not found.live or found.begin != address:
            raise CudaError("cuMemFree", "CUDA_ERROR_INVALID_VALUE", f"{address:#x}")
        found.live = False
        self.used_bytes -= found.nbytes
        ctypes.memset(address, 0xDB, min(found.nbytes, _PAGE))  # stale readers see rubbish
        if found.nbytes > _PAGE:
            offset = address - self._base + _PAGE
            _LIBC.fallocate(self._fd, _PUNCH_HOLE, offset, found.nbytes - _PAGE)

    # --------------------------------------------------------------------------- mapped memory
    def allocate_mapped(self, nbytes: int) -> MappedBlock:
        if nbytes <= 0:
            raise CudaError("cuMemHostAlloc", "CUDA_ERROR_INVALID_VALUE")
        fd = os.memfd_create("fake-host", os.MFD_CLOEXEC)
        whole = -(-nbytes // _PAGE) * _PAGE
        try:
            os.ftruncate(fd, whole)
            host = mapping.map_shared(fd, whole)
        finally:
            os.close(fd)
        return self._know(MappedBlock(host, mapping.alias(host, whole), nbytes), True)

    def free_mapped(self, mapped: MappedBlock) -> None:
        self._forget(mapped, "cuMemFreeHost", "CUDA_ERROR_INVALID_VALUE")
        mapping.fence_off(mapped.host, -(-mapped.nbytes // _PAGE) * _PAGE)

    def register(self, host: int, nbytes: int, read_only: bool = False) -> MappedBlock:
        area = mapping.area(host)
        fits = area is not None and host + nbytes <= area.end and nbytes > 0
        if area is None or not fits or host % _PAGE or not (area.writable or read_only):
            raise CudaError("cuMemHostRegister", "CUDA_ERROR_INVALID_VALUE", f"{host:#x}")
        known = self._at(host)
        if known is not None and known.live:
            raise CudaError("cuMemHostRegister", "CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED")
        return self._know(MappedBlock(host, mapping.alias(host, nbytes), nbytes), not read_only)

    def unregister(self, mapped: MappedBlock) -> None:
        self._forget(mapped, "cuMemHostUnregister", "CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED")

    def _know(self, mapped: MappedBlock, writable: bool) -> MappedBlock:
        ranges = [Range(mapped.device, mapped.nbytes, "mapped", writable)]
        if mapped.host != mapped.device:
            ranges.append(Range(mapped.host, mapped.nbytes, "host"))
        for one in ranges:
            self._add(one)
        self._mapped[mapped] = ranges
        return mapped

    def _forget(self, mapped: MappedBlock, call: str, name: str) -> None:
        ranges = self._mapped.pop(mapped, None)
        if ranges is None:
            raise CudaError(call, name, f"{mapped.host:#x}")
        for one in ranges:
            one.live = False
        if mapped.host != mapped.device:
            mapping.fence_off(mapped.device, -(-mapped.nbytes // _PAGE) * _PAGE)
            self._remove(ranges[1])  # the host may map something else there
        else:
            self._remove(ranges[0])

    # --------------------------------------------------------------------- between processes
    def ipc_handle(self, address: int) -> bytes:
        """Process, file, base of the allocation (as CUDA does, not the address), size."""
        found = self._at(address)
        if found is None or found.kind != "device" or not found.live:
            raise CudaError("cuIpcGetMemHandle", "CUDA_ERROR_INVALID_VALUE", f"{address:#x}")
        words = (os.getpid(), self._fd, os.fstat(self._fd).st_ino)
        parts = (*words, found.begin - self._base, found.nbytes)
        return b"".join(part.to_bytes(8, "little") for part in parts).ljust(64, b"\0")

    def ipc_open(self, handle: bytes) -> int:
        pid, fd, inode, offset, nbytes = (
            int.from_bytes(handle[i : i + 8], "little") for i in range(0, 40, 8)
        )
        if inode == os.fstat(self._fd).st_ino:
            raise CudaError("cuIpcOpenMemHandle", "CUDA_ERROR_INVALID_CONTEXT", "made here")
        try:
            other = os.open(f"/proc/{pid}/fd/{fd}", os.O_RDWR | os.O_CLOEXEC)
        except OSError as error:
            raise CudaError("cuIpcOpenMemHandle", "CUDA_ERROR_INVALID_HANDLE") from error
        try:
            if os.fstat(other).st_ino != inode:
                raise CudaError("cuIpcOpenMemHandle", "CUDA_ERROR_INVALID_HANDLE")
            address = mapping.map_shared(other, -(-nbytes // _PAGE) * _PAGE, offset)
        finally:
            os.close(other)
        self._add(Range(address, nbytes, "opened"))
        return address

    def ipc_close(self, address: int) -> None:
        found = self._at(address)
        if found is None or found.kind != "opened" or not found.live:
            raise CudaError("cuIpcCloseMemHandle", "CUDA_ERROR_INVALID_VALUE")
        found.live = False
        mapping.fence_off(address, -(-found.nbytes // _PAGE) * _PAGE)

    # -------------------------------------------------------------------------------- accesses
    def copy(self, target: int, source: int, nbytes: int, by_kernel: bool = True) -> None:
        """Copy as the GPU does.

        Raises:
            CudaError: an end is freed, not registered, not mapped or read-only.
        """
        if nbytes == 0:
            return
        self._check(source, nbytes, False, by_kernel)
        self._check(target, nbytes, True, by_kernel)
        if not mapping.copy_checked(target, source, nbytes):
            raise _illegal(target, f"or {source:#x}: nothing is mapped there")

    def zero(self, target: int, nbytes: int) -> None:
        if nbytes == 0:
            return
        self._check(target, nbytes, True, True)
        zeroes = ctypes.create_string_buffer(nbytes)
        if not mapping.copy_checked(target, ctypes.addressof(zeroes), nbytes):
            raise _illegal(target, "nothing is mapped there")

    def read(self, address: int, nbytes: int) -> bytes:
        """Bytes as a kernel reads them."""
        self._check(address, nbytes, False, True)
        return ctypes.string_at(address, nbytes)

    def word(self, address: int) -> int:
        """One 64-bit word as a kernel reads it."""
        _check_aligned(address)
        self._check(address, 8, False, True)
        return int(ctypes.c_uint64.from_address(address).value)

    def store(self, address: int, value: int) -> None:
        """One 64-bit word as a kernel writes it."""
        _check_aligned(address)
        self._check(address, 8, True, True)
        ctypes.c_uint64.from_address(address).value = value & (1 << 64) - 1

    def known(self, address: int) -> bool:
        """Whether the driver gave it out or it was registered."""
        return self._at(address) is not None

    def on_host(self, address: int) -> bool:
        """Whether a copy from there comes over a link."""
        found = self._at(address)
        return found is not None and found.kind in ("mapped", "host")

    def leaks(self) -> list[str]:
        """What is still allocated, registered or open."""
        return [
            f"{one.kind} memory of {one.nbytes} bytes at {one.begin:#x}"
            for one in self._ranges
            if one.live and one.kind != "host"
        ]

    def close(self) -> None:
        mapping.unmap(self._base, _ADDRESSES_BYTES)
        os.close(self._fd)

    def _check(self, address: int, nbytes: int, write: bool, by_kernel: bool) -> None:
        found = self._at(address)
        if found is not None:
            self._check_known(found, address, nbytes, write, by_kernel)
        elif self._base <= address < self._base + _ADDRESSES_BYTES:
            raise _illegal(address, "never allocated")
        else:
            area = self._area(address)
            if area is None or not area.anonymous or (write and not area.writable):
                raise _illegal(address, "not registered, or not mapped")

    def _area(self, address: int) -> mapping.Area | None:
        for known in self._areas:
            if known.begin <= address < known.end:
                return known
        found = mapping.area(address)
        if found is not None and found.anonymous:
            self._areas.append(found)  # a stale one is caught by the copy itself
        return found

    def _check_known(
        self, found: Range, address: int, nbytes: int, write: bool, by_kernel: bool
    ) -> None:
        if not found.live:
            raise _illegal(address, f"in {found.kind} memory that was given back")
        if address + nbytes > found.begin + found.nbytes:
            raise _illegal(address, f"{nbytes} bytes reach over the end of {found.kind} memory")
        if write and not found.writable:
            raise _illegal(address, "is registered for reading only")
        if by_kernel and found.kind == "host":
            raise _illegal(address, "is the host's address of mapped memory")

    def _add(self, one: Range) -> None:
        stale = self._at(one.begin)
        if stale is not None:
            self._remove(stale)
        index = bisect.bisect(self._begins, one.begin)
        self._begins.insert(index, one.begin)
        self._ranges.insert(index, one)

    def _remove(self, one: Range) -> None:
        index = self._ranges.index(one)
        del self._begins[index], self._ranges[index]

    def _at(self, address: int) -> Range | None:
        index = bisect.bisect(self._begins, address) - 1
        if index < 0:
            return None
        found = self._ranges[index]
        return found if address < found.begin + found.nbytes else None


def _illegal(address: int, why: str) -> CudaError:
    return CudaError("kernel", "CUDA_ERROR_ILLEGAL_ADDRESS", f"{address:#x} {why}")


def _check_aligned(address: int) -> None:
    if address % 8:
        raise CudaError("kernel", "CUDA_ERROR_MISALIGNED_ADDRESS", f"{address:#x}")
