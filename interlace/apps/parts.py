"""Tensors of more rows than a model takes at once: cut before it, joined behind it."""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from interlace.apps.graph import Step, fitted_shape
from interlace.core.errors import Reason, ServeError, bad_input
from interlace.core.model import Model
from interlace.core.request import Reply, Request, StageTiming, Timing
from interlace.core.tensor import BYTES, Span, Tensor, TensorSpec, element_count
from interlace.shm.arena import Arena, ArenaMap
from interlace.shm.blocks import ArenaBlocks

_LENGTH_BYTES: Final = 4


@dataclass(slots=True, eq=False)
class Held:
    """The outputs of one step, in use by ``users``: steps that read them, and the client.

    They lie where a reply says, or were joined in ``blocks``. An output may be a part of an input's
    memory: ``sources`` are then held as long.
    """

    outputs: tuple[Tensor, ...]
    reply: Reply | None
    blocks: ArenaBlocks | None
    users: int
    sources: list[Held]

    @property
    def nbytes(self) -> int:
        return sum(tensor.span.nbytes for tensor in self.outputs)


class Value(NamedTuple):
    """A tensor of an app: with rows in front or not, and the step that holds its bytes."""

    tensor: Tensor
    batched: bool
    held: Held | None


class TensorMemory:
    """Reads tensors wherever they lie, and writes joined ones to the server's arena."""

    def __init__(self, arena: Arena, arenas: ArenaMap) -> None:
        self._arena = arena
        self._arenas = arenas

    def no_rows(self, spec: TensorSpec) -> Tensor:
        """The output of a model that was given no rows; free dims are 0."""
        dims = (max(0, dim) for dim in spec.dims)
        return Tensor(spec.name, spec.datatype, (0, *dims), Span(self._arena.number, 0, 0))

    def blocks(self) -> ArenaBlocks:
        """Blocks of the server's arena, none so far."""
        return ArenaBlocks(self._arena)

    def write(
        self, blocks: ArenaBlocks, name: str, datatype: str, shape: tuple[int, ...], data: bytes
    ) -> Tensor:
        """A tensor of these bytes, in one of the blocks.

        Raises:
            ServeError: OVERLOADED, no room.
        """
        at = blocks.alloc(max(1, len(data)))
        self._arena.memory[at : at + len(data)] = data
        return Tensor(name, datatype, shape, Span(self._arena.number, at, len(data)))

    def cut(self, tensor: Tensor, most: int) -> list[Tensor]:
        """A tensor in parts of at most ``most`` rows; nothing is copied.

        Raises:
            ServeError: BAD_INPUT, a tensor of strings whose framing is broken; BACKEND, its bytes
                are gone.
        """
        rows = tensor.shape[0]
        counts = [min(most, rows - at) for at in range(0, rows, most)]
        arena, at, nbytes = tensor.span
        if tensor.datatype == BYTES:
            per_row = element_count(tensor.shape[1:])
            sizes = self._string_sizes(tensor, [count * per_row for count in counts])
        else:
            row_bytes = nbytes // rows
            sizes = [count * row_bytes for count in counts]
        parts = []
        for count, size in zip(counts, sizes, strict=True):
            shape = (count, *tensor.shape[1:])
            parts.append(Tensor(tensor.name, tensor.datatype, shape, Span(arena, at, size)))
            at += size
        return parts

    def join(
        self, parts: Sequence[Sequence[Tensor]]
    ) -> tuple[tuple[Tensor, ...], ArenaBlocks | None]:
        """The outputs of requests one after the other, copied; the blocks to free afterwards.

        Raises:
            ServeError: BACKEND, outputs whose rows differ in shape, or whose bytes are gone;
                OVERLOADED, no room.
        """
        blocks, joined = ArenaBlocks(self._arena), []
        try:
            for same in zip(*parts, strict=True):
                first = same[0]
                if any(one.shape[1:] != first.shape[1:] for one in same):
                    shapes = sorted({str(list(one.shape[1:])) for one in same})
                    detail = f"rows of output '{first.name}' differ in shape: {', '.join(shapes)}"
                    raise ServeError(Reason.BACKEND, detail)
                nbytes = sum(one.span.nbytes for one in same)
                at = start = blocks.alloc(max(1, nbytes))
                for one in same:
                    size = one.span.nbytes
                    self._arena.memory[at : at + size] = self._view(one)
                    at += size
                shape = (sum(one.shape[0] for one in same), *first.shape[1:])
                span = Span(self._arena.number, start, nbytes)
                joined.append(Tensor(first.name, first.datatype, shape, span))
        except BaseException:
            blocks.free()
            raise
        return tuple(joined), blocks

    def _view(self, tensor: Tensor) -> memoryview:
        try:
            return self._arenas.view(tensor.span)
        except ValueError as error:  # its memory went with a process
            detail = f"the bytes of tensor '{tensor.name}' are gone: {error}"
            raise ServeError(Reason.BACKEND, detail) from error

    def _string_sizes(self, tensor: Tensor, counts: Sequence[int]) -> list[int]:
        data = self._view(tensor)
        at, sizes = 0, []
        for count in counts:
            start = at
            for _ in range(count):
                if at + _LENGTH_BYTES > len(data):
                    raise bad_input(f"BYTES tensor '{tensor.name}' ends within an element")
                at += _LENGTH_BYTES + int.from_bytes(data[at : at + _LENGTH_BYTES], "little")
            sizes.append(at - start)
        return sizes


def overlap(outputs: Sequence[Tensor], inputs: Sequence[Tensor]) -> bool:
    """True if an output lies in the memory of an input."""
    return any(
        a.span.arena == b.span.arena
        and a.span.offset < b.span.offset + b.span.nbytes
        and b.span.offset < a.span.offset + a.span.nbytes
        for a in outputs
        for b in inputs
    )


def row_count(model: str, inputs: Sequence[Tensor]) -> int:
    """Rows of a model's inputs, equal in all of them.

    Raises:
        ServeError: BAD_INPUT, they are not.
    """
    counts = {tensor.shape[0] for tensor in inputs}
    if len(counts) > 1:
        found = ", ".join(f"'{one.name}' has {one.shape[0]}" for one in inputs)
        raise bad_input(f"inputs of '{model}' need one number of rows; {found}")
    return counts.pop() if counts else 1


def added(timings: Sequence[Timing]) -> Timing:
    """The steps' phases, added."""
    return Timing(
        sum(one.queue_ms for one in timings),
        sum(one.input_ms for one in timings),
        sum(one.infer_ms for one in timings),
        sum(one.output_ms for one in timings),
    )


def fitted_input(value: Value, spec: TensorSpec, batched: bool, model: str) -> Tensor:
    """A tensor of an app as an input of a model.

    Raises:
        ServeError: BACKEND, it has another datatype than its config says; BAD_INPUT, or shape.
    """
    name, datatype, shape, span = value.tensor
    where = f"tensor '{name}' for input '{spec.name}' of '{model}'"
    if datatype != spec.datatype:
        raise ServeError(Reason.BACKEND, f"{where} is {datatype}, expected {spec.datatype}")
    shape = fitted_shape(shape, value.batched, spec, batched, where)
    return Tensor(spec.name, datatype, shape, span)


def left_out(step: Step, reply: Reply, read: Container[str]) -> list[str]:
    """A step's outputs that are read and that its reply does not have."""
    given = {tensor.name for tensor in reply.outputs}
    return [name for name, one in step.outputs.items() if one in read and name not in given]


def own_outputs(
    model: Model,
    request: Request,
    names: Sequence[str],
    values: Mapping[str, Value],
    absent: Container[str],
) -> tuple[Tensor, ...]:
    """The outputs of an app that were asked for; of all, those whose steps had their inputs.

    Raises:
        ServeError: BAD_INPUT, an output that optional tensors are needed for was asked for by name,
            or nothing else is left; BACKEND, a step did not give one.
    """
    batched = model.signature.batched
    specs = {spec.name: spec for spec in model.signature.outputs}
    missing = [name for name in names if name in absent]
    if missing and (request.outputs or len(missing) == len(specs)):
        raise bad_input(f"output '{missing[0]}' needs an optional tensor that is not given")
    found: list[Tensor] = []
    for name in names:
        value = values.get(name)
        if name in absent:
            continue
        if value is None:
            raise ServeError(Reason.BACKEND, f"no step gave output '{name}'")
        what = f"output '{name}'"
        shape = fitted_shape(value.tensor.shape, value.batched, specs[name], batched, what)
        found.append(value.tensor._replace(shape=shape))
    return tuple(found)


def stage_timing(name: str, replies: Sequence[Reply], now_ms: float) -> StageTiming:
    """Wait, run and slack of a stage whose last reply came now."""
    first = replies[0].request
    wait_ms = max(reply.timing.queue_ms for reply in replies)
    run_ms = max(0.0, now_ms - first.arrived_ms - wait_ms)
    return StageTiming(name, wait_ms, run_ms, first.deadline_ms - now_ms)


def in_app(name: str, error: ServeError) -> ServeError:
    """The error of a step, as one of the ensemble."""
    return ServeError(
        error.reason,
        f"in ensemble '{name}', {error.detail}",
        retry_after_ms=error.retry_after_ms,
        late_ms=error.late_ms,
    )
