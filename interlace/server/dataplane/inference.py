"""One inference over any transport: its inputs gathered, answered once, its memory given back."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Final

from interlace.core.errors import ServeError
from interlace.core.request import Callbacks, PartialResponse, Reply, Request, StageTiming
from interlace.core.tensor import Span, Tensor
from interlace.server.body_decoder import BodyDecoder
from interlace.server.dataplane.call import InferenceCall
from interlace.server.dataplane.plane import DataPlane, failure
from interlace.server.dataplane.tensor_places import InputSource
from interlace.server.errors import InternalErrors
from interlace.server.http.bodies import aligned
from interlace.server.limits import HeapReservation
from interlace.server.model_table import ModelTable
from interlace.server.shared_memory import Regions
from interlace.shm.arena import Arena, ArenaMap
from interlace.shm.blocks import ArenaBlocks

_NO_TOKEN: Final = re.compile(r"[^A-Za-z0-9!#$%&'*+.^_`|~-]")


def server_timing(stages: Sequence[StageTiming]) -> str:
    """Wait, run and slack in ms of an app's stages, as a ``Server-Timing`` header has them (W3C).

    ``dur`` is wait and run together. Letters that no token may have become ``_``.
    """
    return ", ".join(
        f"{_NO_TOKEN.sub('_', one.stage)};dur={one.wait_ms + one.run_ms:.3f}"
        f";wait={one.wait_ms:.3f};run={one.run_ms:.3f};slack={one.slack_ms:.3f}"
        for one in stages
    )


class InferenceContext:
    """What all inferences of a server share: the data plane, and the memory of tensors."""

    def __init__(
        self,
        plane: DataPlane,
        table: ModelTable,
        arena: Arena,
        arenas: ArenaMap,
        regions: Regions,
        bodies: BodyDecoder,
    ) -> None:
        """``bodies`` decodes what would hold up the loop; whoever made it closes it."""
        self.plane = plane
        self.table = table
        self.arena = arena
        self.arenas = arenas
        self.view = arenas.view
        self.regions = regions
        self.bodies = bodies
        self.errors = InternalErrors()


class Inference:
    """One inference between its message and its answer.

    It owns ``blocks``, in which its inputs lie, ``reserved`` heap, and later the memory of its
    reply's outputs. ``release`` gives back all three, once, however the inference ends.
    """

    __slots__ = ("_context", "_reply", "_request", "blocks", "gone", "reserved")

    def __init__(self, context: InferenceContext, blocks: ArenaBlocks) -> None:
        self._context = context
        self._request: Request | None = None
        self._reply: Reply | None = None
        self.blocks = blocks
        self.reserved: HeapReservation | None = None
        self.gone = False  #: no response is wanted any more: the client left, or was given an error

    def answer(self, reply: Reply) -> None:
        """Answer with the outputs of a reply; call ``release`` once their bytes have gone."""
        raise NotImplementedError

    def send(self, response: PartialResponse, model: str) -> None:
        """Send one of several responses of a deployment; release it once its bytes have gone.

        Raises:
            ServeError: it has no form that the client asked for; it is not released then.
        """
        raise NotImplementedError

    def fail(self, error: ServeError) -> None:
        """Answer with an error."""
        raise NotImplementedError

    def ask(self, call: InferenceCall, streams: bool) -> None:
        """Call the data plane; ``streams`` if a reply in several responses can be answered."""
        caller = Callbacks(self.reply, self.give_up, self.respond if streams else None)
        self._request = self._context.plane.infer(call, caller, self.refuse)

    def reply(self, reply: Reply) -> None:
        """Answer with a reply. Never raises: the runtime has other requests to answer."""
        self._reply = reply
        error = failure(reply)
        try:
            if error is not None:
                self.refuse(error)
            elif self.gone:
                self.release()
            else:
                self.answer(reply)
        except Exception as found:
            self.refuse(self._context.errors.refusal(found, "an inference"))

    def respond(self, response: PartialResponse) -> None:
        """Send one of several responses. Never raises.

        After the last one, or an error, the client gets nothing more; the reply still comes.
        """
        request = self._request
        if self.gone or request is None:
            response.release()
            return
        self.gone = response.final or response.error is not None
        try:
            if response.error is not None:
                raise response.error
            self.send(response, request.model)
        except Exception as found:
            response.release()
            self.gone = True
            self.fail(self._context.errors.refusal(found, "a response"))
            if not response.final:
                self._context.plane.cancel(request)

    def refuse(self, error: ServeError) -> None:
        """Answer with an error; whatever is held is given back."""
        self.release()
        if not self.gone:
            self.fail(error)

    def give_up(self, error: ServeError) -> None:
        """Answer a request that still runs with an error; its reply frees what is held."""
        if not self.gone:
            self.gone = True
            self.fail(error)

    def abandon(self) -> None:
        """The client is gone; the reply still comes and frees what is held."""
        self.gone = True
        if self._request is not None:
            self._context.plane.cancel(self._request)

    def release(self) -> None:
        """Give back the reply's memory, the inputs' blocks and the reserved heap; twice is once."""
        reply, self._reply = self._reply, None
        if reply is not None:
            self._context.plane.delivered(reply)
        self.blocks.free()
        if self.reserved is not None:
            self.reserved.release()


def gathered(
    sources: Sequence[InputSource],
    raw: Iterable[Span],
    blocks: ArenaBlocks,
    arena: Arena,
    regions: Regions,
) -> tuple[Tensor, ...]:
    """All inputs in the arena: those sent as text or typed, or in shared memory, are copied there.

    ``raw`` are the places in the arena of the others, in order. The copies lie in one new block of
    ``blocks``.

    Raises:
        ServeError: the arena is full, or no shared-memory region has the bytes that are named.
    """
    there = iter(raw)
    copied = [each.nbytes for each in sources if each.data is not None or each.region is not None]
    at = blocks.alloc(max(1, sum(map(aligned, copied)))) if copied else 0
    inputs = []
    for source in sources:
        if source.at is not None:
            span = Span(arena.number, source.at, source.nbytes)
        elif source.follows:
            span = next(there)
        else:
            span = Span(arena.number, at, source.nbytes)
            at += aligned(source.nbytes)
            target = arena.view(span.offset, span.nbytes)
            if source.region is not None:
                regions.read_into(source.region.name, source.region.offset, target)
            elif source.data is not None:
                target[:] = source.data
        inputs.append(Tensor(source.name, source.datatype, source.shape, span))
    return tuple(inputs)
