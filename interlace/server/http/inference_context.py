"""What all inferences over HTTP share."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, Final

from interlace.server.body_decoder.client import BodyDecoder
from interlace.server.cache import GenerationalCache
from interlace.server.dataplane.plane import DataPlane, TensorMemory
from interlace.server.heap_budget import HeapBudget
from interlace.server.http.decoded_request import DecodedRequest
from interlace.server.http.limits import HttpLimits
from interlace.server.http.request_json import decode_request
from interlace.server.internal_errors import InternalErrors
from interlace.server.model_table import ModelTable, ServedModel
from interlace.server.shared_memory import Regions
from interlace.shm.arena import Arena

#: JSON parts remembered, and the largest one worth remembering.
TEMPLATES_KEPT: Final = 1024
KEPT_BYTES: Final = 4096


class InferenceContext:
    """The data plane, the memory of bodies, and the JSON parts seen before."""

    def __init__(
        self,
        plane: DataPlane,
        table: ModelTable,
        arena: Arena,
        arenas: TensorMemory,
        regions: Regions,
        limits: HttpLimits,
        bodies: BodyDecoder,
    ) -> None:
        """``bodies`` decodes what would hold up the loop; it is closed with the HTTP server."""
        self.bodies = bodies
        self.plane = plane
        self.arena = arena
        self.view = arenas.view
        self.regions = regions
        self.limits = limits
        self.budget = HeapBudget(limits.heap_bytes)
        self.errors = InternalErrors()
        self._table = table
        self._known: GenerationalCache[tuple[tuple[str, ...], bytes, bool], DecodedRequest]
        self._known = GenerationalCache(TEMPLATES_KEPT)
        self._tasks: set[asyncio.Task[None]] = set()

    def decoded(self, names: tuple[str, ...], json: bytes, has_header: bool) -> DecodedRequest:
        """The meaning of a JSON part for a model, remembered by its bytes.

        Raises:
            ServeError: it is no inference request.
        """
        key = (names, json, has_header)
        found = self._known.get(key)
        if found is None:
            found = decode_request(json, has_header)
            if len(json) <= KEPT_BYTES:
                self._known.put(key, found)
        return found

    def decoded_before(self, names: tuple[str, ...], json: bytes) -> DecodedRequest | None:
        """The same, of a JSON part with binary data behind it; ``None`` if it was not seen yet."""
        return self._known.get((names, json, True))

    def model(self, names: tuple[str, ...]) -> ServedModel:
        """The deployment that a path names, with its version or without.

        Raises:
            ServeError: there is none.
        """
        return self._table.resolve(names[0], names[1] if len(names) > 1 else "")

    def spawn(self, work: Coroutine[Any, Any, None]) -> None:
        """Run that on later turns of the loop."""
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
