"""The handler of inference and generate requests over HTTP."""

from __future__ import annotations

from interlace.core.errors import ServeError
from interlace.server.compression import unpack_small, unpack_within
from interlace.server.http.bodies import ArenaBody
from interlace.server.http.exchange import ResponseWriter
from interlace.server.http.generate import Generation
from interlace.server.http.inference import Inference
from interlace.server.http.inference_context import InferenceContext
from interlace.server.http.large_bodies import LargeBodies
from interlace.server.http.limits import MIB
from interlace.server.http.request_head import RequestHead
from interlace.server.http.routes import RouteKind
from interlace.shm.blocks import ArenaBlocks


class InferenceHandler:
    """Places bodies in the arena, and begins inferences: small ones at once, large ones apart."""

    def __init__(self, context: InferenceContext) -> None:
        self.context = context
        self._limits = context.limits
        self._large = LargeBodies(context)
        self.whole_bytes = 0  # tensors are read where they were placed
        self.budget = context.budget
        self.arena = context.arena

    def place(self, head: RequestHead, data: bytearray, start: int, end: int) -> ArenaBody:
        """Where a body is received; ``data[start:end]`` is what of it is here already.

        Raises:
            ServeError: the arena is full, no request of the model is as large, or it is known that
                the model has no time for it now.
        """
        if head.json_length < 0 or head.length > MIB:
            self._large.check_length(head)
        plane, stop = self.context.plane, start + head.json_length
        # Nothing is known of a JSON part that is not all here yet, or compressed.
        if start < stop <= end and not head.encoding and plane.refusing:
            json = bytes(memoryview(data)[start:stop])
            seen = self.context.decoded_before(head.names, json)
            refusal = None if seen is None else plane.known_refusal(seen.template)
            if refusal is not None:
                raise refusal
        in_front = head.json_length >= 0 and not head.encoding
        json_length = head.json_length if in_front else head.length
        return ArenaBody(self.context.arena, head.length, json_length, end - start)

    def begin(
        self, writer: ResponseWriter, head: RequestHead, body: ArenaBody | bytearray
    ) -> Inference:
        """Begin one inference."""
        context, small = self.context, self._limits.here_bytes
        kind = Generation if head.route.kind is RouteKind.GENERATE else Inference
        blocks = body.hand_over() if isinstance(body, ArenaBody) else ArenaBlocks(context.arena)
        inference = kind(context, writer, head, blocks)
        try:
            if isinstance(body, bytearray):
                self._begin_from_heap(inference, head, body)
            elif not head.encoding and 0 <= head.json_length <= small:
                inference.start(body)
            else:
                self._large.begin(inference, head, body)
        except ServeError as error:
            inference.refuse(error)
        except Exception as error:
            inference.refuse(context.errors.refusal(error, "an inference"))
        return inference

    def close(self) -> None:
        """End the process that decodes large bodies."""
        self._large.close()

    def _begin_from_heap(self, inference: Inference, head: RequestHead, body: bytearray) -> None:
        generates = head.route.kind is RouteKind.GENERATE
        here_bytes = self._limits.generate_bytes if generates else self._limits.here_bytes
        if len(body) > here_bytes:
            self._large.begin(inference, head, body)
            return
        if not head.encoding:
            plain: bytes | None = bytes(body)
        elif generates:
            plain = unpack_within(body, head.encoding, here_bytes)
        else:
            plain = unpack_small(body, head.encoding, here_bytes)
        if plain is None:
            self._large.begin(inference, head, body)
        else:
            inference.start(plain)
