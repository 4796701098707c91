"""The inputs of an HTTP request as tensors in the arena."""

from __future__ import annotations

from collections.abc import Sequence

from interlace.core.errors import ServeError, bad_input
from interlace.core.tensor import Span, Tensor
from interlace.server.http.arena_body import ALIGNMENT, ArenaBody
from interlace.server.http.raw_body import LENGTH_BYTES
from interlace.server.http.request_json import DecodedRequest, InputSource, lies
from interlace.server.shared_memory import Regions
from interlace.shm.arena import Arena


def lying(sources: Sequence[InputSource], landing: ArenaBody) -> tuple[Tensor, ...]:
    """Inputs that all stay where they were received."""
    base, arena = landing.base, landing.arena
    return tuple(
        [
            Tensor(name, datatype, shape, Span(arena, base + offset, nbytes))
            for name, datatype, shape, offset, nbytes, _, _, _ in sources
        ]
    )


def room(sources: Sequence[InputSource]) -> int:
    """Bytes of the slot that the others need; at least one."""
    return max(1, sum(_aligned(source.nbytes) for source in sources if _moves(source)))


class InputGatherer:
    """Puts inputs that came as JSON, in shared memory, or unaligned, into a slot of their own."""

    def __init__(self, arena: Arena, regions: Regions, landing: ArenaBody | None) -> None:
        self._arena = arena
        self._regions = regions
        self._landing = landing

    def tensors(self, sources: Sequence[InputSource], slot: int) -> tuple[Tensor, ...]:
        """Every input, in the order given; ``slot`` has ``room`` for those that move.

        Raises:
            ServeError: a shared-memory region does not hold what was said.
        """
        inputs = []
        for source in sources:
            if lies(source):
                assert self._landing is not None
                offset = self._landing.base + source.offset
            elif source.at is not None:
                offset = source.at
            else:
                self._fill(source, self._arena.view(slot, source.nbytes))
                offset, slot = slot, slot + _aligned(source.nbytes)
            span = Span(self._arena.number, offset, source.nbytes)
            inputs.append(Tensor(source.name, source.datatype, source.shape, span))
        return tuple(inputs)

    def _fill(self, source: InputSource, target: memoryview) -> None:
        if source.data is not None:
            target[:] = source.data
        elif source.region is not None:
            self._regions.read_into(source.region.name, source.region.offset, target)
        else:
            assert self._landing is not None
            at = self._landing.json_length + source.offset
            target[:] = self._landing.view[at : at + source.nbytes]


def write_length(arena: Arena, landing: ArenaBody) -> None:
    """Put the length of a raw body in front of it, for a model that takes BYTES."""
    length = landing.length.to_bytes(LENGTH_BYTES, "little")
    arena.view(landing.base - LENGTH_BYTES, LENGTH_BYTES)[:] = length


def check_json(json_bytes: int, nbytes: int) -> None:
    """Refuse a JSON part longer than its body.

    Raises:
        ServeError: it is.
    """
    if json_bytes > nbytes:
        raise bad_input(
            f"Inference-Header-Content-Length {json_bytes} exceeds the {nbytes} bytes sent"
        )


def wrong_size(decoded: DecodedRequest, landing: ArenaBody) -> ServeError:
    """The refusal of a body whose binary part is not what its JSON says."""
    given = landing.length - landing.json_length
    named = ", ".join(f"'{s.name}' {s.nbytes}" for s in decoded.sources if s.follows)
    return bad_input(
        f"{given} bytes of binary data follow the JSON part, but its inputs take "
        f"{decoded.binary_bytes} ({named or 'none is binary'})"
    )


def _moves(source: InputSource) -> bool:
    return source.at is None and not lies(source)


def _aligned(nbytes: int) -> int:
    return -(-nbytes // ALIGNMENT) * ALIGNMENT
