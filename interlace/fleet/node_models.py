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
    """Reads models off nodes, which have the same files: one of each kind that answers is enough.

    Kinds are those of accelerators. One of which no node is left is remembered.
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
        """Deploy what is new or other than before, withdraw what is at hand no more.

        ``nodes`` are those that have what is wanted at hand, of which ``files`` is the digest.
        They are asked when that has changed, or when one has come.

        Raises:
            ServeError: of one kind no node answered.
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
