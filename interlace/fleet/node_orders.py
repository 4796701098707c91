"""Orders to nodes over their own ports, and why a node does not do what it should."""

from __future__ import annotations

import logging
from contextlib import suppress
from typing import Final

import msgspec

from interlace.core.errors import ServeError
from interlace.core.node import Assignment, FilesOrder, Revision
from interlace.router.http.reads import NodeReader
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
    try:
        return str(msgspec.json.decode(answer.body)["error"])
    except (msgspec.DecodeError, KeyError, TypeError):
        return answer.body[:200].decode("utf-8", "replace")
