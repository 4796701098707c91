"""The inputs of an HTTP request as tensors in the arena."""

from __future__ import annotations

from collections.abc import Sequence

from interlace.core.errors import ServeError, bad_input
from interlace.core.tensor import Span, Tensor
from interlace.server.http.bodies import LENGTH_BYTES, ArenaBody, aligned
from interlace.server.http.decoded_request import DecodedRequest, InputSource
from interlace.server.shared_memory import Regions
from interlace.shm.arena import Arena
from interlace.shm.blocks import ArenaBlocks


def in_place(sources: Sequence[InputSource], body: ArenaBody) -> tuple[Tensor, ...]:
    """Inputs that all stay where they were received."""
    base, arena = body.base, body.arena.number
    return tuple(
        [
            Tensor(name, datatype, shape, Span(arena, base + offset, nbytes))
            for name, datatype, shape, offset, nbytes, _, _, _ in sources
        ]
    )


def gathered(
    sources: Sequence[InputSource],
    body: ArenaBody | None,
    blocks: ArenaBlocks,
    arena: Arena,
    regions: Regions,
) -> tuple[Tensor, ...]:
    """Inputs of which some came as JSON, in shared memory, or unaligned: those are copied.

    The copies lie in one new block of ``blocks``.

    Raises:
        ServeError: the arena is full, or a shared-memory region does not hold what was said.
    """
    at = blocks.alloc(max(1, sum(aligned(source.nbytes) for source in sources if _moves(source))))
    inputs = []
    for source in sources:
        if source.at is not None:
            offset = source.at
        elif source.in_place:
            assert body is not None, "what follows the JSON part is in a body"
            offset = body.base + source.offset
        else:
            _fill(source, arena.view(at, source.nbytes), body, regions)
            offset, at = at, at + aligned(source.nbytes)
        span = Span(arena.number, offset, source.nbytes)
        inputs.append(Tensor(source.name, source.datatype, source.shape, span))
    return tuple(inputs)


def _fill(
    source: InputSource, target: memoryview, body: ArenaBody | None, regions: Regions
) -> None:
    if source.data is not None:
        target[:] = source.data
    elif source.region is not None:
        regions.read_into(source.region.name, source.region.offset, target)
    else:
        assert body is not None, "what follows the JSON part is in a body"
        at = body.json_length + source.offset
        target[:] = body.view[at : at + source.nbytes]


def _moves(source: InputSource) -> bool:
    return source.at is None and not source.in_place


def write_length(arena: Arena, body: ArenaBody) -> None:
    """Put the length of a raw body in front of it, for a model that takes BYTES."""
    length = body.length.to_bytes(LENGTH_BYTES, "little")
    arena.view(body.base - LENGTH_BYTES, LENGTH_BYTES)[:] = length


def check_json(json_bytes: int, nbytes: int) -> None:
    """Refuse a JSON part longer than its body.

    Raises:
        ServeError: it is.
    """
    if json_bytes > nbytes:
        raise bad_input(
            f"Inference-Header-Content-Length {json_bytes} exceeds the {nbytes} bytes sent"
        )


def wrong_size(decoded: DecodedRequest, body: ArenaBody) -> ServeError:
    """The refusal of a body whose binary part is not what its JSON says."""
    given = body.length - body.json_length
    named = ", ".join(f"'{s.name}' {s.nbytes}" for s in decoded.sources if s.follows)
    return bad_input(
        f"{given} bytes of binary data follow the JSON part, but its inputs take "
        f"{decoded.binary_bytes} ({named or 'none is binary'})"
    )
