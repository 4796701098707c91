"""The files of the models that a fleet is to serve, given to nodes that lack them."""

from __future__ import annotations

import asyncio
import hashlib
import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import msgspec

from interlace.core.errors import Reason, RepositoryError, ServeError
from interlace.core.node import ModelFiles
from interlace.core.tables import counted
from interlace.profiling.sweep import telling
from interlace.repository.digest import BLOCK_BYTES, Digests, models_in
from interlace.server.api_keys import Access
from interlace.server.http.responses import OCTETS
from interlace.server.http.routes import AdminRequest, HttpResponse, Route

_LOG: Final = logging.getLogger(__name__)


class FleetFiles:
    """What a folder of models holds, looked at when asked to; a file is given block by block."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._digests = Digests()
        self._paths: dict[str, Path] = {}
        self._broken = ""
        self.models: dict[str, ModelFiles] = {}
        self.digest = ""  #: of all of them, "" before the first look

    async def look(self) -> None:
        """Read the folder. A model that cannot be read stays as it was, and is logged once."""
        failures: dict[str, RepositoryError] = {}
        found: dict[str, ModelFiles] = {}
        root = self._root
        try:
            async with telling(_LOG, lambda: f"reading {root}: {counted(len(found), 'model')}"):
                await asyncio.to_thread(models_in, root, self._digests, failures, found)
        except RepositoryError as error:
            return self._tell({"": error})
        self._tell(failures)
        found |= {name: self.models[name] for name in failures if name in self.models}
        if found == self.models and self.digest:
            return
        self.models = found
        self.digest = hashlib.sha256(msgspec.json.encode(found, order="sorted")).hexdigest()
        self._paths = {
            digest: self._root / name / path
            for name, one in found.items()
            for path, (_, digest) in one.files.items()
        }
        _LOG.info("%s has %s", self._root, counted(len(found), "model"))

    def _tell(self, failures: Mapping[str, RepositoryError]) -> None:
        broken = "; ".join(str(failures[name]) for name in sorted(failures))
        if broken and broken != self._broken:
            _LOG.error("models of the fleet cannot be read: %s", broken)
        self._broken = broken

    def routes(self) -> list[Route]:
        """Which models there are, and their files; both need the node key."""
        return [
            Route(
                "/v2/fleet/models",
                respond={"GET": lambda asked: HttpResponse(msgspec.json.encode(self.models))},
                access=Access.ORDER,
                title="The fleet's models and their files",
            ),
            Route(
                "/v2/fleet/files/{digest}/{block}",
                respond={"GET": self._block},
                access=Access.ORDER,
                title="A block of a model's file",
            ),
        ]

    async def _block(self, asked: AdminRequest) -> HttpResponse:
        digest, number = asked.names
        path = self._paths.get(digest)
        if path is None or not number.isdecimal():
            raise ServeError(Reason.BAD_INPUT, f"no model here has a file of digest {digest[:12]}")
        try:
            block = await asyncio.to_thread(_read, path, int(number))
        except OSError as error:
            raise ServeError(Reason.BACKEND, f"{path} cannot be read: {error}") from error
        return HttpResponse(block, media=OCTETS)


def _read(path: Path, number: int) -> bytes:
    with path.open("rb") as file:
        file.seek(number * BLOCK_BYTES)
        return file.read(BLOCK_BYTES)
