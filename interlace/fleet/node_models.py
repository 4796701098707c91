"""What nodes have at hand, brought in line with what a controller plans for."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
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
    """Reads models off nodes; every node has the same files, so one that answers is enough.

    Of what nodes have, those that are ``wanted`` are planned for.
    """

    def __init__(self, reader: NodeReader, wanted: Callable[[], Iterable[str]]) -> None:
        self._reader = reader
        self._wanted = wanted
        self._known: dict[str, NodeModel] = {}
        self._read_of: tuple[object, ...] = ()

    def forget(self) -> None:
        """Another controller is to be told all of them."""
        self._known = {}
        self._read_of = ()

    async def bring_up(self, controller: Controller, nodes: Mapping[str, NodeDescription]) -> None:
        """Deploy what is new or other than before, withdraw what is at hand no more.

        Nodes look at their files when they begin: they are asked when one has begun.

        Raises:
            ServeError: no node answered.
            RepositoryError: what is wanted cannot be read.
        """
        wanted = frozenset(self._wanted())
        there = (wanted, frozenset((name, one.began) for name, one in nodes.items()))
        if there == self._read_of:
            return
        found = {n: one for n, one in (await self._ask(nodes)).items() if n in wanted}
        gone = [
            name for name, before in self._known.items() if found.get(name) != before
        ]  # of other files: withdrawn, and deployed anew
        for name in gone:
            controller.withdraw(name)
        new = {name: one for name, one in found.items() if self._known.get(name) != one}
        self._known, self._read_of = found, there if found else ()
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
