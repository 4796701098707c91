"""The administrative methods of a fleet, as a router answers them: read from nodes, merged."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any, Final
from urllib.parse import quote

import msgspec

from interlace.core.errors import Reason, ServeError
from interlace.router.directory import NodeDirectory
from interlace.router.http.reads import NodeReader
from interlace.server.administration.methods import AdminAnswers
from interlace.server.http.routes import HttpResponse

_REASONS: Final = {400: Reason.BAD_INPUT, 401: Reason.UNAUTHORIZED, 404: Reason.UNKNOWN_MODEL}


class RouterApi(AdminAnswers):
    """What a router answers besides inferences."""

    def __init__(self, directory: NodeDirectory, reader: NodeReader) -> None:
        self._directory = directory
        self._reader = reader
        self.accepting = True

    def ready(self) -> bool:
        """Whether some node can be asked."""
        return self.accepting and self._directory.serves("")

    def model_ready(self, name: str, version: str = "") -> bool:
        """Whether a node that can be asked answers that model, in whatever version."""
        return self.accepting and self._directory.serves(name)

    async def server_metadata(self) -> object:
        return await self._any("", "/v2")

    async def models(self) -> object:
        """Names of the models that some node serves."""
        every = await self._every("GET", "/v2/models")
        return {"models": sorted({name for one in every for name in one["models"]})}

    async def model_metadata(self, name: str, version: str = "") -> object:
        return await self._any(name, _path(name, version))

    async def model_config(self, name: str, version: str = "") -> object:
        return await self._any(name, _path(name, version) + "/config")

    async def statistics(self, name: str = "", version: str = "") -> object:
        """Statistics of all nodes, added up."""
        every = await self._every("GET", "/v2/models/stats")
        stats = [
            entry
            for entry in merged_statistics([one["model_stats"] for one in every])
            if (not name or entry["name"] == name) and (not version or entry["version"] == version)
        ]
        if name and not stats:
            raise ServeError(Reason.BAD_INPUT, f"requested model '{name[:128]}' is not available")
        return {"model_stats": stats}

    async def index(self, ready_only: bool = False) -> object:
        """Every version of every model on some node, ready if one node has it ready."""
        body = msgspec.json.encode({"ready": ready_only})
        return merged_index(await self._every("POST", "/v2/repository/index", body))

    async def _any(self, model: str, path: str) -> object:
        return _decoded(await self._reader.ask_any(model, path))

    async def _every(self, method: str, path: str, body: bytes = b"") -> list[Any]:
        """What every node answers that does.

        Raises:
            ServeError: none did.
        """
        names = [node.name for node in self._directory.nodes]
        asked = [self._reader.ask(name, method, path, body) for name in names]
        answers = await asyncio.gather(*asked, return_exceptions=True)
        failed = [one for one in answers if isinstance(one, BaseException)]
        if len(failed) == len(answers):
            raise failed[0] if failed else ServeError(Reason.NOT_READY, "the fleet has no nodes")
        return [_decoded(one) for one in answers if isinstance(one, HttpResponse)]


def _path(name: str, version: str) -> str:
    path = f"/v2/models/{quote(name, safe='')}"
    return f"{path}/versions/{quote(version, safe='')}" if version else path


def _decoded(answer: HttpResponse) -> Any:
    """The JSON of an answer.

    Raises:
        ServeError: it is a refusal.
    """
    content = msgspec.json.decode(answer.body) if answer.body else {}
    if answer.status != 200:
        reason = _REASONS.get(answer.status, Reason.NOT_READY)
        raise ServeError(reason, str(content.get("error", f"HTTP {answer.status}")))
    return content


_READY: Final = "READY"


def merged_index(indices: Sequence[Sequence[dict[str, Any]]]) -> list[dict[str, Any]]:
    """One entry for each version of a model: of a node that has it ready, if there is one."""
    found: dict[tuple[str, str], dict[str, Any]] = {}
    for index in indices:
        for entry in index:
            key = entry["name"], entry["version"]
            if key not in found or entry["state"] == _READY:
                found[key] = entry
    return [found[key] for key in sorted(found)]


def merged_statistics(statistics: Sequence[Sequence[dict[str, Any]]]) -> list[dict[str, Any]]:
    """Triton's statistics of each version of a model, added up over nodes."""
    found: dict[tuple[str, str], dict[str, Any]] = {}
    for one in statistics:
        for entry in one:
            key = entry["name"], entry["version"]
            found[key] = _sum(found[key], entry) if key in found else entry
    return [found[key] for key in sorted(found)]


def _sum(one: Any, other: Any, key: str = "") -> Any:
    """Counts and durations add up, of times the later stands; lists go by batch size."""
    if isinstance(one, dict):
        return {name: _sum(one[name], other[name], name) if name in other else one[name]
                for name in one}  # fmt: skip
    if key == "batch_stats":
        sizes = {batch["batch_size"]: batch for batch in one}
        for batch in other:
            size = batch["batch_size"]
            known = sizes.get(size)
            sizes[size] = batch if known is None else {**_sum(known, batch), "batch_size": size}
        return [sizes[size] for size in sorted(sizes)]
    if isinstance(one, list):
        return [*one, *other]
    if key == "last_inference":
        return max(one, other)
    return one + other if isinstance(one, int) else one
