"""What models said of themselves, kept: one that was opened need not be at each start."""

from __future__ import annotations

import hashlib
import logging
import os
from pathlib import Path
from tempfile import NamedTemporaryFile

import msgspec

from interlace.core.model import Model
from interlace.core.tensor import Signature
from interlace.core.version import __version__
from interlace.profiling.environment import libraries

_log = logging.getLogger(__name__)


class KnownModel(msgspec.Struct, frozen=True):
    """What a model said when it was opened: its tensors, and what it is but for its weights."""

    signature: Signature
    architecture: str = ""


class SignatureStore:
    """A folder of what models said, by files, declared tensors and library versions."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._libraries = repr((__version__, sorted(libraries().items())))

    def find(self, model: Model) -> KnownModel | None:
        """What a model of these files, described this way, said of itself."""
        try:
            return msgspec.json.decode(self._path(model).read_bytes(), type=KnownModel)
        except (OSError, msgspec.MsgspecError):
            return None  # it is opened, and says it again

    def save(self, model: Model, said: KnownModel) -> None:
        """Keep it, whole or not at all."""
        path = self._path(model)
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            with NamedTemporaryFile(dir=path.parent, delete=False) as file:
                file.write(msgspec.json.encode(said))
            os.replace(file.name, path)
        except OSError as error:
            _log.warning(
                "%s: the signature of %s is not kept: %s", path, model.name, error.strerror
            )

    def _path(self, model: Model) -> Path:
        told = model.signature
        known = (told.inputs, told.outputs, told.batched, sorted(model.sample.items()))
        text = f"{self._libraries} {model.format.value} {model.digest} {known!r}"
        return self._folder / f"{hashlib.sha256(text.encode()).hexdigest()[:32]}.json"
