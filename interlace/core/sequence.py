"""Sequences: requests that share a state, in the terms of Triton's sequence batcher."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from msgspec import Struct

from interlace.core.tensor import TensorSpec


class SequenceStep(Struct, frozen=True, array_like=True, gc=False):
    """The place of a request in a sequence, whose id is its client's choice."""

    id: int | str
    start: bool = False
    end: bool = False


class ControlKind(Enum):
    """What a control tensor tells the model."""

    START = "CONTROL_SEQUENCE_START"
    READY = "CONTROL_SEQUENCE_READY"
    END = "CONTROL_SEQUENCE_END"
    CORRID = "CONTROL_SEQUENCE_CORRID"


@dataclass(frozen=True, slots=True)
class ControlInput:
    """An input that the server fills: with one of ``values`` (false, true), or with the id."""

    spec: TensorSpec
    kind: ControlKind
    values: tuple[float, float] = (0.0, 1.0)


@dataclass(frozen=True, slots=True)
class StateTensor:
    """An output that is the input of the sequence's next request.

    The first request has zeros of ``first_dims``, or the bytes of ``file`` (in the v2 binary form).
    """

    spec: TensorSpec
    output: str
    first_dims: tuple[int, ...]
    file: str = ""


@dataclass(frozen=True, slots=True)
class SequenceTerms:
    """How a model takes sequences. At most ``candidates`` are live at a time, 0 for any number."""

    idle_ms: float
    candidates: int
    controls: tuple[ControlInput, ...] = ()
    states: tuple[StateTensor, ...] = ()

    @property
    def inputs(self) -> tuple[TensorSpec, ...]:
        """The inputs that clients do not give."""
        states = tuple(one.spec for one in self.states)
        return (*(one.spec for one in self.controls), *states)

    @property
    def outputs(self) -> tuple[TensorSpec, ...]:
        """The outputs that clients do not get."""
        return tuple(
            TensorSpec(one.output, one.spec.datatype, one.spec.dims) for one in self.states
        )
