"""System shared memory that clients registered: read and written in place of request bytes.

Regions are accessed with ``preadv`` and ``pwrite``, not mapped: a client that truncates its region
gets an error instead of killing the server with SIGBUS.
"""

from __future__ import annotations

import os
import stat
from dataclasses import dataclass
from typing import Final

from interlace.core.errors import Reason, ServeError, bad_input

FOLDER: Final = "/dev/shm"
REGION_LIMIT: Final = 1024


@dataclass(frozen=True, slots=True)
class Region:
    """``byte_size`` bytes from ``offset`` of the POSIX shared-memory object ``key``."""

    name: str
    key: str
    offset: int
    byte_size: int
    fd: int

    @property
    def shown(self) -> dict[str, object]:
        """The region as clients see it."""
        shown = "name", "key", "offset", "byte_size"
        return {name: getattr(self, name) for name in shown}


class Regions:
    """The registered regions of one server; register is refused unless the operator allows it."""

    def __init__(self, allowed: bool = False) -> None:
        self.allowed = allowed
        self._regions: dict[str, Region] = {}

    def register(self, name: str, key: str, offset: int, byte_size: int) -> None:
        """Open a region under a name.

        Raises:
            ServeError: not allowed, name taken, no such object, or outside of it.
        """
        if not self.allowed:
            raise ServeError(
                Reason.UNSUPPORTED,
                "client shared memory is off on this server; send tensors in the request, or ask "
                "the operator to allow it (--allow-client-shm)",
            )
        if name in self._regions:
            raise bad_input(f"shared memory region '{name}' already in manager")
        if len(self._regions) >= REGION_LIMIT:
            raise bad_input(f"{REGION_LIMIT} shared memory regions are registered: unregister some")
        self._regions[name] = self._open(name, key, offset, byte_size)

    def unregister(self, name: str = "") -> None:
        """Forget one region, or all for an empty name. Unknown names pass."""
        for each in [name] if name else list(self._regions):
            region = self._regions.pop(each, None)
            if region is not None:
                os.close(region.fd)

    def status(self, name: str = "") -> list[Region]:
        """One region, or all for an empty name.

        Raises:
            ServeError: no such region.
        """
        if not name:
            return list(self._regions.values())
        return [self._find(name)]

    def check(self, name: str, offset: int, nbytes: int) -> None:
        """That these bytes lie inside a region.

        Raises:
            ServeError: unknown region, or out of its bounds.
        """
        region = self._find(name)
        if offset < 0 or nbytes < 0 or offset + nbytes > region.byte_size:
            raise bad_input(
                f"bytes {offset} to {offset + nbytes} lie outside of shared memory region "
                f"'{name}' of {region.byte_size} bytes"
            )

    def read_into(self, name: str, offset: int, target: memoryview) -> None:
        """Fill a writable buffer from a region.

        Raises:
            ServeError: unknown region, out of its bounds, or shrunk since it was registered.
        """
        view = target
        self.check(name, offset, view.nbytes)
        region = self._regions[name]
        at = region.offset + offset
        while view.nbytes:
            got = os.preadv(region.fd, [view], at)
            if not got:
                raise bad_input(
                    f"shared memory region '{name}' is now smaller than it was registered"
                )
            view, at = view[got:], at + got

    def store(
        self, output: str, name: str, offset: int, room: int, data: memoryview | bytes
    ) -> None:
        """Copy an output into the ``room`` bytes of a region that its request named for it.

        Raises:
            ServeError: too little room, unknown region, out of its bounds, or not writable.
        """
        if len(data) > room:
            raise bad_input(
                f"shared memory size specified with the request for output '{output}' "
                f"({room} bytes) should be at least {len(data)} bytes to hold the results"
            )
        view = memoryview(data)
        self.check(name, offset, view.nbytes)
        region = self._regions[name]
        at = region.offset + offset
        try:
            while view.nbytes:
                done = os.pwrite(region.fd, view, at)
                view, at = view[done:], at + done
        except OSError as error:
            raise bad_input(
                f"cannot write shared memory region '{name}': {error.strerror}"
            ) from error

    def close(self) -> None:
        """Forget every region."""
        self.unregister()

    def _find(self, name: str) -> Region:
        region = self._regions.get(name)
        if region is None:
            raise bad_input(f"Unable to find shared memory region: '{name}'")
        return region

    def _open(self, name: str, key: str, offset: int, byte_size: int) -> Region:
        plain = key.removeprefix("/")
        if not plain or "/" in plain or "\0" in plain or plain in (".", ".."):
            raise bad_input(f"shared memory key '{key}' must be one name, such as /my_input")
        try:
            flags = os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
            fd = os.open(os.path.join(FOLDER, plain), flags)
        except OSError as error:
            raise bad_input(
                f"Unable to open shared memory region: '{key}': {error.strerror}"
            ) from error
        try:
            _check_bounds(fd, key, offset, byte_size)
        except ServeError:
            os.close(fd)
            raise
        return Region(name, key, offset, byte_size, fd)


def _check_bounds(fd: int, key: str, offset: int, byte_size: int) -> None:
    found = os.fstat(fd)
    if not stat.S_ISREG(found.st_mode):
        raise bad_input(f"shared memory key '{key}' is not a shared memory object")
    if offset < 0 or byte_size < 1 or offset + byte_size > found.st_size:
        raise bad_input(
            f"bytes {offset} to {offset + byte_size} lie outside of shared memory object "
            f"'{key}' of {found.st_size} bytes"
        )
