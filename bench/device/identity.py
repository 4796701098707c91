"""A model that returns what it gets: what is left is the cost of the device itself."""

from __future__ import annotations

from collections.abc import Mapping

from interlace.core.model import Model
from interlace.core.tensor import Signature
from interlace.formats.runner import Array


class Identity:
    """Returns each input under the name of the output of the same place."""

    resident_bytes = 0
    shared_bytes = 0
    warnings: tuple[str, ...] = ()

    def __init__(self, signature: Signature) -> None:
        self.signature = signature
        pairs = zip(signature.inputs, signature.outputs, strict=True)
        self._names = [(source.name, target.name) for source, target in pairs]

    def run(self, inputs: Mapping[str, Array]) -> dict[str, Array]:
        return {target: inputs[source] for source, target in self._names}

    def close(self) -> None:
        pass


def open_identity(model: Model, threads: int, weights_dir: str | None) -> Identity:
    """The ``open_model`` of this benchmark."""
    return Identity(model.signature)
