"""What nodes have at hand, brought in line with what a controller plans for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

import msgspec

from interlace.core.errors import Reason, ServeError
from interlace.core.node import NodeDescription, NodeModel
from interlace.fleet.controller import Controller
from interlace.router.http.reads import NodeReader

_MODELS: Final = msgspec.msgpack.Decoder(dict[str, NodeModel])
_PATH: Final = "/v2/node/models"


class NodeModels:
    """Reads models off nodes, which have equal files: one answer for each kind is enough.

    Kinds are those of accelerators. A kind is remembered after its last node has left.
    """

    def __init__(self, reader: NodeReader) -> None:
        self._reader = reader
        self._known: dict[str, dict[str, NodeModel]] = {}  #: by kind and name
        self._files = ""
        self._read_of: tuple[object, ...] = ()

    def forget(self) -> None:
        """Another controller is to be told all of them."""
        self._known = {}
        self._read_of = ()

    def remark(self, kind: str) -> str:
        """Which models other kinds have a profile of and this one has none of; "" if none."""
        if kind not in self._known:
            return ""  # it was not asked yet
        models = ", ".join(sorted(_by_name(self._known).keys() - self._known[kind].keys()))
        return f"no profile on {kind} of {models}: measure or add one" if models else ""

    async def bring_up(
        self, controller: Controller, nodes: Mapping[str, NodeDescription], files: str
    ) -> None:
        """Deploy models that are new or changed; withdraw those that nodes no longer have.

        ``nodes`` are those that have the wanted files; ``files`` is the digest of these files.
        Nodes are asked when the digest has changed, or when a node has joined.

        Raises:
            ServeError: no node of some kind answered.
        """
        there = (files, frozenset((name, one.began) for name, one in nodes.items()))
        if there == self._read_of or not nodes:
            return
        by_kind: dict[str, list[str]] = {}
        for name, one in nodes.items():
            by_kind.setdefault(one.gpus[0].kind, []).append(name)
        found = {kind: await self._ask(names) for kind, names in by_kind.items()}
        if files == self._files:
            found = {**self._known, **found}
        before, now = _by_name(self._known), _by_name(found)
        for name in before.keys() - now.keys():
            controller.withdraw(name)
        new = {name: one for name, one in now.items() if before.get(name) != one}
        self._known, self._files, self._read_of = found, files, there
        if new:
            controller.deploy(new)

    async def _ask(self, nodes: Sequence[str]) -> dict[str, NodeModel]:
        failure = _unreadable(nodes)
        for node in nodes:
            try:
                answer = await self._reader.ask(node, "GET", _PATH)
            except ServeError as error:
                failure = error
                continue
            if answer.status == 200:
                return _MODELS.decode(answer.body)
        raise failure


def _unreadable(nodes: Sequence[str]) -> ServeError:
    """None of these nodes says what it could serve."""
    return ServeError(Reason.BACKEND, f"{', '.join(nodes)} do not say what they could serve")


def _by_name(known: Mapping[str, Mapping[str, NodeModel]]) -> dict[str, dict[str, NodeModel]]:
    found: dict[str, dict[str, NodeModel]] = {}
    for kind, models in sorted(known.items()):
        for name, one in models.items():
            found.setdefault(name, {})[kind] = one
    return found
