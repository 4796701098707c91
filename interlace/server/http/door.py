"""What all inferences over HTTP share."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Final

from interlace.core.errors import ServeError
from interlace.server.codec import Decoded, decode
from interlace.server.compress import unpack
from interlace.server.dataplane import Bytes, DataPlane
from interlace.server.http.generate import Generation
from interlace.server.http.head import Head
from interlace.server.http.infer import Inference, broken
from interlace.server.http.limits import HttpLimits
from interlace.server.http.routes import Kind
from interlace.server.landing import Landing
from interlace.server.recall import Recall
from interlace.server.shared_memory import Regions
from interlace.server.table import ModelTable
from interlace.shm.arena import Arena

if TYPE_CHECKING:
    from interlace.server.http.connection import Connection

#: JSON parts remembered, and the largest one worth remembering.
FORMS_KEPT: Final = 1024
KEPT_BYTES: Final = 4096
#: From this size on a compressed body is unpacked beside the loop.
UNPACK_BESIDE_BYTES: Final = 64 * 1024


class InferDoor:
    """Begins inferences: the responder of both kinds of inference routes."""

    def __init__(
        self,
        plane: DataPlane,
        table: ModelTable,
        arena: Arena,
        arenas: Bytes,
        regions: Regions,
        limits: HttpLimits,
    ) -> None:
        self.plane = plane
        self.table = table
        self.arena = arena
        self.view = arenas.view
        self.regions = regions
        self._limits = limits
        self._forms: Recall[tuple[tuple[str, ...], bytes, bool], Decoded] = Recall(FORMS_KEPT)

    def begin(self, connection: Connection, head: Head, body: Landing | bytes) -> Inference:
        """Begin one inference."""
        kind = Generation if head.route.kind is Kind.GENERATE else Inference
        inference = kind(self, connection, head)
        if head.encoding:
            assert isinstance(body, bytes)
            self._unpack(inference, head, body)
            return inference
        try:
            inference.start(body)
        except ServeError as error:
            inference.refuse(error)
        except Exception as error:
            inference.refuse(broken(error))
        return inference

    def decoded(self, names: tuple[str, ...], json: bytes, has_header: bool) -> Decoded:
        """The meaning of a JSON part for a model, remembered by its bytes.

        Raises:
            ServeError: it is no inference request.
        """
        key = (names, json, has_header)
        known = self._forms.get(key)
        if known is not None:
            return known
        found = self._forms.find(key)
        if found is None:
            found = decode(json, has_header)
            if len(json) <= KEPT_BYTES:
                self._forms.put(key, found)
        return found

    def _unpack(self, inference: Inference, head: Head, body: bytes) -> None:
        limit_bytes = self._limits.body_bytes if head.json_length >= 0 else self._limits.json_bytes
        unpacking = partial(unpack, body, head.encoding, limit_bytes)
        if len(body) < UNPACK_BESIDE_BYTES:
            _start(inference, unpacking)
            return
        done = asyncio.get_running_loop().run_in_executor(None, unpacking)
        done.add_done_callback(lambda unpacked: _start(inference, unpacked.result))


def _start(inference: Inference, body: Callable[[], bytes]) -> None:
    if inference.gone:
        return
    try:
        inference.start(body())
    except ServeError as error:
        inference.refuse(error)
    except Exception as error:
        inference.refuse(broken(error))
