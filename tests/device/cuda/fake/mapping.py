"""What the process has mapped where, and second mappings of the same pages."""

import ctypes
import os
from pathlib import Path
from typing import Final, NamedTuple

_LIBC: Final = ctypes.CDLL(None, use_errno=True)
_LIBC.mremap.restype = ctypes.c_void_p
_LIBC.mremap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_size_t, ctypes.c_int]
_LIBC.mmap.restype = ctypes.c_void_p
_LIBC.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long]
_LIBC.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
_LIBC.mprotect.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
_LIBC.process_vm_readv.restype = ctypes.c_ssize_t
_MAYMOVE: Final = 1
_READ_WRITE: Final = 3
_SHARED_NORESERVE: Final = 0x4001
_FAILED: Final = ctypes.c_void_p(-1).value


class Area(NamedTuple):
    """One line of ``/proc/self/maps``."""

    begin: int
    end: int
    writable: bool
    anonymous: bool


class _Piece(ctypes.Structure):
    _fields_ = (("base", ctypes.c_void_p), ("nbytes", ctypes.c_size_t))


def area(address: int) -> Area | None:
    """Where an address lies; ``None`` if nothing is mapped there."""
    for line in Path("/proc/self/maps").read_text().splitlines():
        fields = line.split(maxsplit=5)
        begin, end = (int(part, 16) for part in fields[0].split("-"))
        if begin <= address < end:
            path = fields[5] if len(fields) > 5 else ""
            return Area(begin, end, "w" in fields[1], path in ("", "[heap]") or "[anon" in path)
    return None


def map_shared(fd: int, nbytes: int, offset: int = 0) -> int:
    """Map a file of memory, without taking memory before it is touched."""
    address: int = _LIBC.mmap(None, nbytes, _READ_WRITE, _SHARED_NORESERVE, fd, offset)
    if address == _FAILED:
        raise OSError(ctypes.get_errno(), "mmap")
    return address


def alias(address: int, nbytes: int) -> int:
    """The same pages at a second address, or the same address if they are private memory."""
    second: int = _LIBC.mremap(address, 0, nbytes, _MAYMOVE)
    return address if second == _FAILED else second


def unmap(address: int, nbytes: int) -> None:
    _LIBC.munmap(address, nbytes)


def fence_off(address: int, nbytes: int) -> None:
    """Keep the addresses taken, and nothing readable there any more."""
    _LIBC.mprotect(address, nbytes, 0)


def copy_checked(target: int, source: int, nbytes: int) -> bool:
    """Copy; false where either end is not mapped."""
    here, there = _Piece(target, nbytes), _Piece(source, nbytes)
    copied = _LIBC.process_vm_readv(os.getpid(), ctypes.byref(here), 1, ctypes.byref(there), 1, 0)
    return bool(copied == nbytes)
