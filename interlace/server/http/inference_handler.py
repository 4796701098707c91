"""What all inferences over HTTP share."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from interlace.core.errors import Reason, ServeError
from interlace.server.cache import GenerationalCache
from interlace.server.dataplane.plane import DataPlane, TensorMemory
from interlace.server.heap_budget import HeapBudget
from interlace.server.http.arena_body import ArenaBody
from interlace.server.http.compression import unpack_small
from interlace.server.http.generate import Generation
from interlace.server.http.inference import Inference
from interlace.server.http.internal_errors import InternalErrors
from interlace.server.http.large_bodies import LargeBodies
from interlace.server.http.limits import HttpLimits
from interlace.server.http.request_head import RequestHead
from interlace.server.http.request_json import DecodedRequest, decode
from interlace.server.http.routes import RouteKind
from interlace.server.model_table import ModelTable
from interlace.server.shared_memory import Regions
from interlace.shm.arena import Arena

if TYPE_CHECKING:
    from interlace.server.http.connection import HttpConnection

#: JSON parts remembered, and the largest one worth remembering.
FORMS_KEPT: Final = 1024
KEPT_BYTES: Final = 4096


class InferenceHandler:
    """Begins inferences: the responder of both kinds of inference routes."""

    def __init__(
        self,
        plane: DataPlane,
        table: ModelTable,
        arena: Arena,
        arenas: TensorMemory,
        regions: Regions,
        limits: HttpLimits,
    ) -> None:
        self.plane = plane
        self.table = table
        self.arena = arena
        self.view = arenas.view
        self.regions = regions
        self.budget = HeapBudget(limits.heap_bytes)
        self.faults = InternalErrors()
        self.large = LargeBodies(table, arena, self.view, limits, self.faults)
        self._limits = limits
        self._forms: GenerationalCache[tuple[tuple[str, ...], bytes, bool], DecodedRequest] = (
            GenerationalCache(FORMS_KEPT)
        )

    def begin(
        self, connection: HttpConnection, head: RequestHead, body: ArenaBody | bytearray
    ) -> Inference:
        """Begin one inference."""
        kind = Generation if head.route.kind is RouteKind.GENERATE else Inference
        inference = kind(self, connection, head)
        try:
            if type(body) is ArenaBody and self._is_plain(head):
                inference.start(body)
            else:
                self._begin(inference, head, body)
        except ServeError as error:
            inference.refuse(error)
        except Exception as error:
            inference.refuse(self.faults.refusal(error, "an inference"))
        return inference

    def known_refusal(self, names: tuple[str, ...], json: bytes) -> ServeError | None:
        """Why a request with this JSON part would be refused now, where its like just was."""
        key = (names, json, True)
        known = self._forms.get(key) or self._forms.find(key)
        return None if known is None else self.plane.known_refusal(known.form)

    def close(self) -> None:
        """End what decodes beside the loop."""
        self.large.close()

    def decoded(self, names: tuple[str, ...], json: bytes, has_header: bool) -> DecodedRequest:
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

    def _is_plain(self, head: RequestHead) -> bool:
        return not head.encoding and 0 <= head.json_length <= self._limits.here_bytes

    def _begin(self, inference: Inference, head: RequestHead, body: ArenaBody | bytearray) -> None:
        """Begin with a body that is small, or goes on in ``large``."""
        here_bytes = self._limits.here_bytes
        if head.route.kind is RouteKind.GENERATE:
            here_bytes = self._limits.generate_bytes
        if type(body) is ArenaBody:
            self.large.begin(inference, head, body)
            return
        assert isinstance(body, bytearray)
        if len(body) > here_bytes:
            self.large.begin(inference, head, body)
            return
        plain = unpack_small(body, head.encoding, here_bytes) if head.encoding else bytes(body)
        if plain is not None:
            inference.start(plain)
        elif head.route.kind is RouteKind.GENERATE:
            text = f"the body unpacks to more than the limit of {here_bytes} bytes"
            raise ServeError(Reason.TOO_LARGE, text)
        else:
            self.large.begin(inference, head, body)
