"""What an operator changed of a fleet's nodes, kept where the next controller finds it."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

import msgspec

from interlace.core.errors import Reason, ServeError
from interlace.core.node import Node
from interlace.core.user_errors import InputError

_FILE: Final = "nodes.json"


class NodeChanges(msgspec.Struct, frozen=True):
    """Nodes that were ``added`` and ``removed``, and those that are to serve nothing."""

    added: tuple[Node, ...] = ()
    removed: frozenset[str] = frozenset()
    drained: frozenset[str] = frozenset()


class KeptNodeChanges:
    """The changes that hold now; in a file of the lease's folder, if there is one."""

    def __init__(self, folder: Path | None) -> None:
        """Without a folder they end with this process.

        Raises:
            InputError: the file there cannot be read.
        """
        self._path = None if folder is None else folder / _FILE
        self.now = NodeChanges()
        self.read()

    def read(self) -> None:
        """Take what another controller has kept meanwhile.

        Raises:
            InputError: it cannot be read.
        """
        if self._path is None or not self._path.exists():
            return
        try:
            self.now = msgspec.json.decode(self._path.read_bytes(), type=NodeChanges)
        except (OSError, msgspec.MsgspecError) as error:
            raise InputError(
                f"{self._path}: changes of nodes cannot be read ({error}): remove it to forget them"
            ) from error

    def keep(self, changes: NodeChanges) -> None:
        """These hold from now on.

        Raises:
            ServeError: they cannot be written, and do not hold.
        """
        if self._path is not None:
            written = self._path.with_suffix(f".{os.getpid()}")
            try:
                self._path.parent.mkdir(parents=True, exist_ok=True)
                written.write_bytes(msgspec.json.encode(changes))
                written.replace(self._path)
            except OSError as error:
                raise ServeError(
                    Reason.BACKEND, f"the order cannot be kept in {self._path}: {error.strerror}"
                ) from error
        self.now = changes
