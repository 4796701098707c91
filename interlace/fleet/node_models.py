"""What nodes have at hand, brought in line with what a controller plans for."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

import msgspec

from interlace.core.errors import ServeError
from interlace.core.messages import Deployment
from interlace.core.node import NodeDescription, NodeModel
from interlace.fleet.controller import Controller
from interlace.router.http.reads import NodeReader

_MODELS: Final = msgspec.msgpack.Decoder(dict[str, NodeModel])
_PATH: Final = "/v2/node/models"


class NodeModels:
    """Reads models off nodes that have the same files, so that one which answers is enough."""

    def __init__(self, reader: NodeReader) -> None:
        self._reader = reader
        self._known: dict[str, NodeModel] = {}
        self._read_of: tuple[object, ...] = ()

    def forget(self) -> None:
        """Another controller is to be told all of them."""
        self._known = {}
        self._read_of = ()

    async def bring_up(
        self, controller: Controller, nodes: Mapping[str, NodeDescription], files: str
    ) -> None:
        """Deploy what is new or other than before, withdraw what is at hand no more.

        ``nodes`` are those that have what is wanted at hand, of which ``files`` is the digest.
        They are asked when that has changed, or when one has come.

        Raises:
            ServeError: no node answered.
        """
        there = (files, frozenset((name, one.began) for name, one in nodes.items()))
        if there == self._read_of or not nodes:
            return
        found = await self._ask(nodes)
        for name in self._known.keys() - found.keys():
            controller.withdraw(name)
        new = {name: one for name, one in found.items() if self._known.get(name) != one}
        self._known, self._read_of = found, there
        if new:
            controller.deploy(
                [(Deployment(one.demand, one.profile), one.digest) for one in new.values()]
            )

    async def _ask(self, nodes: Iterable[str]) -> dict[str, NodeModel]:
        failure: ServeError | None = None
        for node in nodes:
            try:
                answer = await self._reader.ask(node, "GET", _PATH)
            except ServeError as error:
                failure = error
                continue
            if answer.status == 200:
                return _MODELS.decode(answer.body)
        if failure is not None:
            raise failure
        return self._known
