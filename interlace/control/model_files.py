"""The models that a controller wants at hand here: their files fetched, or compared with ours."""

from __future__ import annotations

import asyncio
import errno
import logging
import socket
import threading
from collections.abc import Awaitable, Callable, Collection, Mapping
from contextlib import suppress
from http.client import HTTPConnection, HTTPException, HTTPSConnection
from pathlib import Path
from ssl import SSLCertVerificationError
from typing import Final

import msgspec

from interlace.core.errors import Reason, RepositoryError, ServeError
from interlace.core.node import FilesOrder, ModelFiles
from interlace.repository.digest import (
    BLOCK_BYTES,
    Digests,
    ReadBlock,
    fetch,
    forget_all_but,
    models_in,
)
from interlace.server.tls import HTTP, TlsFiles

_LOG: Final = logging.getLogger(__name__)
_TIMEOUT_S: Final = 10.0
#: A call of the controller that has not ended by then is broken off, however it drips.
_CALL_S: Final = 60.0
#: Of the list of models: a thousand models of a hundred files each.
_LIST_BYTES: Final = 32 << 20
_PIECE_BYTES: Final = 1 << 18
_AGAIN_S: Final = 3.0
_HTTPS: Final = "https://"
_ALL: Final = "*"  # where a model's name stands, if it is none of them
_MODELS: Final = msgspec.json.Decoder(dict[str, ModelFiles])

#: Told the models that came or changed, and those that went.
OnChanged = Callable[[Collection[str], Collection[str]], Awaitable[None]]


class ControllerCalls:
    """How a node calls the controller: with that key, and with TLS where the controller has it.

    With an authority in ``tls`` no other controller is called.
    """

    def __init__(self, key: str, tls: TlsFiles) -> None:
        """Raises InputError where a file of ``tls`` cannot be used."""
        self._key = key
        self._private = tls.ca is not None
        self._tls = tls.client(HTTP, by_name=False)

    def get(self, source: str, path: str, most_bytes: int) -> bytes:
        """The body of a GET from a source: HOST:PORT, or https://HOST:PORT.

        It blocks, and has a connection of its own: calls are few and large.

        Raises:
            OSError, HTTPException: it did not answer in time, not with 200, or with more than
                ``most_bytes``; or it would be called in clear text, and may not.
        """
        connection = self._connection(source)
        connection.connect()
        end = threading.Timer(_CALL_S, _break_off, (connection.sock,))
        end.daemon = True
        end.start()
        try:
            connection.request("GET", path, headers={"X-API-Key": self._key} if self._key else {})
            reply = connection.getresponse()
            body = bytearray()
            while piece := reply.read1(_PIECE_BYTES):
                body += piece
                if len(body) > most_bytes:
                    raise HTTPException(f"it sends more than {most_bytes} bytes for {path}")
            if reply.length:
                raise HTTPException(f"it broke off {path} after {len(body)} bytes")
        finally:
            end.cancel()
            connection.close()
        if reply.status != 200:
            raise HTTPException(f"{reply.status} {body[:200].decode('utf-8', 'replace')}")
        return bytes(body)

    def _connection(self, source: str) -> HTTPConnection:
        address = source.removeprefix(_HTTPS)
        if address != source:
            return HTTPSConnection(address, timeout=_TIMEOUT_S, context=self._tls.now())
        if self._private:
            raise HTTPException(
                "it would be called in clear text: start it with --tls-cert and --tls-key, or this "
                "node without --ca"
            )
        return HTTPConnection(address, timeout=_TIMEOUT_S)


class WantedModels:
    """Carries out the newest ``FilesOrder``; what fails is tried again until another comes."""

    def __init__(
        self, root: Path, fetches: bool, calls: ControllerCalls, changed: OnChanged
    ) -> None:
        """``fetches``: the folder ``root`` is ours."""
        self._root, self._fetches, self._calls = root, fetches, calls
        self._changed = changed
        self._digests = Digests()
        self._at_hand: dict[str, str] = {}  # digests of what ``changed`` was told of
        self._order: FilesOrder | None = None
        self._task: asyncio.Task[None] | None = None
        self._ended = threading.Event()  #: the order that is carried out is not to go on
        self.taken = ""  #: the digest of the order that was carried out
        self.failures: dict[str, str] = {}  #: models that are not at hand, and why

    async def look(self) -> None:
        """What lies here has been looked at.

        Raises:
            RepositoryError: the repository itself cannot be read.
        """
        found = await asyncio.to_thread(models_in, self._root, self._digests)
        self._at_hand = {name: one.digest for name, one in found.items()}

    def order(self, order: FilesOrder) -> None:
        """Begin to carry out an order.

        Raises:
            ServeError: SUPERSEDED by that of a later controller.
        """
        if self._order is not None and order.term < self._order.term:
            raise ServeError(
                Reason.SUPERSEDED,
                f"an order of term {order.term} comes too late, the last was of {self._order.term}",
            )
        if order == self._order:
            return
        self.close()
        self._order = order
        self._ended = threading.Event()
        self._task = asyncio.ensure_future(self._carry_out(order, self._ended))

    def close(self) -> None:
        """Stop what is being carried out, with the next block at the latest."""
        if self._task is not None:
            self._task.cancel()
        self._ended.set()

    async def _carry_out(self, order: FilesOrder, ended: threading.Event) -> None:
        while True:
            try:
                self.failures = await self._take(order, ended)
            except Exception as error:  # of a controller that says what nobody expects
                self.failures = {_ALL: _reached(order, error)}
            if _ALL not in self.failures:
                self.taken = order.digest
            if not self.failures:
                return
            for model, why in self.failures.items():
                _LOG.error("%s is not at hand: %s", model, why)
            await asyncio.sleep(_AGAIN_S)

    async def _take(self, order: FilesOrder, ended: threading.Event) -> dict[str, str]:
        """What of the order failed."""

        def block(digest: str, number: int) -> bytes:
            if ended.is_set():
                raise HTTPException("another order came")
            path = f"/v2/fleet/files/{digest}/{number}"
            return self._calls.get(order.source, path, BLOCK_BYTES)

        try:
            listed = await asyncio.to_thread(
                self._calls.get, order.source, "/v2/fleet/models", _LIST_BYTES
            )
            wanted = _MODELS.decode(listed)
        except (OSError, HTTPException, msgspec.MsgspecError, RecursionError) as error:
            return {_ALL: f"which models are wanted could not be read: {_reached(order, error)}"}
        failures: dict[str, str] = {}
        for name, files in wanted.items():
            try:
                await asyncio.to_thread(self._bring, name, files, block)
            except RepositoryError as error:
                failures[name] = str(error)
            except HTTPException as error:
                failures[name] = f"its files could not be fetched: {_reached(order, error)}"
            except OSError as error:
                failures[name] = self._failure(order, error)
        if self._fetches:
            try:
                await asyncio.to_thread(forget_all_but, self._root, set(wanted))
            except OSError as error:
                _LOG.warning("what is not wanted any more stays: %s", error)
        await self._tell({n: one.digest for n, one in wanted.items() if n not in failures})
        return failures

    async def _tell(self, now: Mapping[str, str]) -> None:
        before, self._at_hand = self._at_hand, dict(now)
        new = {name for name, digest in now.items() if before.get(name) != digest}
        await self._changed(new, before.keys() - now.keys())

    def _bring(self, name: str, files: ModelFiles, block: ReadBlock) -> None:
        folder = self._root / name
        found = self._digests.of(folder) if folder.is_dir() else ""
        if found == files.digest:
            return
        if not self._fetches:
            raise RepositoryError(
                str(folder),
                f"files of digest {found[:12]}" if found else "no such folder",
                f"those of the controller, of digest {files.digest[:12]}: bring the same files to "
                "every node, or start this one without MODELS_DIR, which has it fetch them",
            )
        _LOG.info("fetching %s: %d bytes", name, sum(size for size, _ in files.files.values()))
        fetch(self._root, name, files, block, self._digests)

    def _failure(self, order: FilesOrder, error: OSError) -> str:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            return f"no room for its files in {self._root}: make room there"
        if error.filename is not None:
            return f"its files could not be written: {error}"
        return f"its files could not be fetched: {_reached(order, error)}"


def _break_off(connection: socket.socket) -> None:
    with suppress(OSError):  # it has ended
        connection.shutdown(socket.SHUT_RDWR)


def _reached(order: FilesOrder, error: Exception) -> str:
    hint = ": start this node with --ca" if isinstance(error, SSLCertVerificationError) else ""
    return f"the controller at {order.source}: {error or type(error).__name__}{hint}"
