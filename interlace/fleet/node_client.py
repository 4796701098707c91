"""Nodes over HTTP: what they are and could serve, orders to them, and what is wrong with them."""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from math import inf
from typing import Final

import msgspec

from interlace.core.errors import Reason, ServeError
from interlace.core.node import Assignment, FilesOrder, NodeDescription, NodeModel, Revision
from interlace.core.version import __version__
from interlace.fleet.controller import Controller
from interlace.router.http.reads import NodeReader
from interlace.server.errors import error_text
from interlace.server.http.routes import HttpResponse

_LOG: Final = logging.getLogger(__name__)


class NodeOrders:
    """Sends orders; what a node says against one is its problem until it takes one."""

    def __init__(self, reader: NodeReader) -> None:
        self._reader = reader
        self.problems: dict[str, str] = {}  #: by node

    async def serve(self, node: str, assignment: Assignment) -> bool:
        """Give a node its assignment; false if it refuses it."""
        body = msgspec.json.encode(assignment)
        try:
            answer = await self._reader.ask(node, "POST", "/v2/node/assignment", body)
        except ServeError as error:
            self.complain(node, f"was not told its part of the plan: {error}")
            return True
        if answer.status == 200:
            self.problems.pop(node, None)
            return True
        self.complain(node, f"refuses its part of the plan: {_error(answer)}")
        return False

    async def standing(self, node: str) -> Assignment | None:
        """What a node was told last.

        Raises:
            ServeError, msgspec.MsgspecError: it does not say.
        """
        answer = await self._reader.ask(node, "GET", "/v2/node/assignment")
        return msgspec.json.decode(answer.body, type=Assignment | None)

    async def bring(self, node: str, files: FilesOrder) -> None:
        """Have a node bring what is wanted."""
        try:
            body = msgspec.json.encode(files)
            answer = await self._reader.ask(node, "POST", "/v2/node/files", body)
        except ServeError as error:
            self.complain(node, f"was not told which models are wanted: {error}")
            return
        if answer.status != 200:
            self.complain(node, f"refuses to bring what is wanted: {_error(answer)}")

    async def drain(self, node: str, revision: Revision) -> None:
        """Let a node take nothing; one that does not answer may be told again."""
        body = msgspec.json.encode({"revision": revision})
        with suppress(ServeError):
            await self._reader.ask(node, "POST", "/v2/node/drain", body)

    def complain(self, node: str, why: str) -> None:
        """That is wrong with a node: told once."""
        if self.problems.get(node) != why:
            self.problems[node] = why
            _LOG.warning("node %s %s", node, why)


def _error(answer: HttpResponse) -> str:
    if answer.status == 401:
        return "it has another key: start it and this controller with the same --node-key-file"
    return error_text(answer.body)


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
        text = f"{', '.join(nodes)} do not say what they could serve"
        failure = ServeError(Reason.BACKEND, text)
        for node in nodes:
            try:
                answer = await self._reader.ask(node, "GET", _PATH)
            except ServeError as error:
                failure = error
                continue
            if answer.status == 200:
                return _MODELS.decode(answer.body)
        raise failure


def _by_name(known: Mapping[str, Mapping[str, NodeModel]]) -> dict[str, dict[str, NodeModel]]:
    found: dict[str, dict[str, NodeModel]] = {}
    for kind, models in sorted(known.items()):
        for name, one in models.items():
            found.setdefault(name, {})[kind] = one
    return found


#: Clocks that differ by less are alike: logs and metrics of machines can be compared.
_ALIKE_S: Final = 1.0


def read_description(body: bytes) -> tuple[NodeDescription, float | None]:
    """What a node says that it is, and its clock in Unix seconds; ``None`` where it tells none.

    JSON has no infinity: a link without bound comes as null.

    Raises:
        MsgspecError: it is no such thing.
    """
    try:
        found = msgspec.json.decode(body)
        clock_s = None
        if isinstance(found, dict):
            clock_s = msgspec.convert(found.pop("clock_s", None), float | None)
            for gpu in found.get("gpus", ()):
                links = gpu.get("links", {})
                links.update({key: inf for key, value in links.items() if value is None})
        return msgspec.convert(found, NodeDescription), clock_s
    except (AttributeError, TypeError, RecursionError, ValueError) as error:
        raise msgspec.ValidationError(f"not a description of a node: {error}") from None


def unfit(
    found: NodeDescription, others: Mapping[str, NodeDescription], computing: Collection[str]
) -> str:
    """Why a node cannot be planned for beside others, and what to do; "" if it can.

    ``computing`` are those of the fleet that compute, lost ones too: nobody wants made-up answers
    in their stead.
    """
    twin = next((name for name, one in others.items() if one.began == found.began), None)
    if twin is not None:
        return f"is the same server as {twin}: name it once"
    ids = [gpu.id for gpu in found.gpus]
    if not ids or len(set(ids)) < len(ids):
        return "has no accelerator, or two of one name: start it anew, and see what it logs"
    if not found.assigned:
        return "plans for itself: start it with --assigned"
    if found.version != __version__:
        return f"runs version {found.version}, this controller {__version__}: use one"
    if found.emulated and computing:
        return (
            f"emulates its {found.gpus[0].kind}, and its answers would be made up, while "
            f"{min(computing)} computes: start it with --device cuda or cpu, or remove it"
        )
    return ""


def clock_remark(clock_s: float | None, asked_s: float, answered_s: float) -> str:
    """What is wrong with a node's clock, read between two times of ours; "" if nothing is.

    Nothing is decided by comparing clocks, but logs and metrics of machines are.
    """
    if clock_s is None or asked_s - _ALIKE_S <= clock_s <= answered_s + _ALIKE_S:
        return ""
    ahead_s = clock_s - (asked_s + answered_s) / 2.0
    which = "ahead of" if ahead_s > 0.0 else "behind"
    return (
        f"its clock is {abs(ahead_s):.0f} s {which} this controller's, so their logs and metrics "
        "do not fit together: set both machines' clocks (NTP)"
    )
