"""The one contract of every model format."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final, NamedTuple, Protocol, runtime_checkable

import numpy as np

from interlace.core.model import Model
from interlace.core.tensor import Signature
from interlace.formats.extents_file import ExtentsFile

#: Executions before a model is as fast as it gets: TorchScript profiles twice and compiles on the
#: third.
WARM_RUNS: Final = 3

#: One tensor on the host. ``BYTES`` are object arrays of ``bytes``, ``BF16`` are uint16 arrays.
Array = np.ndarray[Any, Any]


#: Why a fetch failed that nobody waited for any more.
CANCELLED: Final = "cancelled"


class Arrived(NamedTuple):
    """How a fetch ended: why it failed, if it did; what of it was read from disk, and its time."""

    failure: str
    disk_bytes: int
    took_ms: float


class ComingWeights(Protocol):
    """Weights that come and go, by use in the order of execution (``formats.cold_weights``)."""

    @property
    def nbytes(self) -> tuple[int, ...]:
        """The memory that each use takes."""

    @property
    def file(self) -> ExtentsFile:
        """Where they come from."""

    def place(self, places: Mapping[int, int], memory: memoryview) -> None: ...
    def leave(self, indices: Iterable[int]) -> None: ...
    def fetch(
        self, places: Mapping[int, int], memory: memoryview, done: Callable[[Arrived], None]
    ) -> None: ...
    def cancel(self) -> None: ...


class ModelRunner(Protocol):
    """A model ready to run in this process. One thread at a time calls it."""

    @property
    def signature(self) -> Signature:
        """What the model says of itself, filled up from its description where it is silent.

        ``max_batch`` is the largest row count that the model itself allows, 0 if it names none.
        """

    @property
    def resident_bytes(self) -> int:
        """Weights and constants the model holds in this process, those it shares included."""

    @property
    def shared_bytes(self) -> int:
        """The part of ``resident_bytes`` that all processes running this model have in common."""

    @property
    def warnings(self) -> tuple[str, ...]:
        """What an operator should know, such as why the weights are not shared."""

    @property
    def cold(self) -> ComingWeights | None:
        """Its weights, where they can come and go."""

    def run(self, inputs: Mapping[str, Array]) -> dict[str, Array]:
        """Outputs by name for one batch; the inputs are only read and may be read-only.

        An output may be a view of an input's memory.

        Raises:
            Exception: whatever the model raises; ``ValueError`` if a result contradicts the
                signature.
        """

    def close(self) -> None:
        """Let go of the model's memory; ``run`` must not be called again."""


@runtime_checkable
class TakesTurns(Protocol):
    """A runner whose open module may run other models of its architecture, too."""

    @property
    def architecture(self) -> str:
        """As ``formats.shared_architecture``; empty if it shares with none."""

    def of_another(self, model: Model, weights_dir: str) -> ModelRunner:
        """A model of the same architecture, without opening it.

        Raises:
            OSError, ValueError: its weights are not in that folder as this one's are.
        """
