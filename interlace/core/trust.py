"""Which models may run code of their own: the operator says so, never a file of a model."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Final

from interlace.core.errors import RepositoryError
from interlace.core.model import MODEL_FILES, Format

#: Formats whose files are programs: opening or running one does what its author wants. torch
#: evaluates expressions of a ``.pt2`` as Python, and TorchScript reads and writes files. All other
#: formats, and all configs, are data.
CODE_FORMATS: Final = frozenset({Format.FACTORY, Format.TORCHSCRIPT, Format.EXPORTED})
#: How the names of their files end.
CODE_SUFFIXES: Final = tuple(Path(MODEL_FILES[form]).suffix for form in CODE_FORMATS)


@dataclass(frozen=True, slots=True)
class TrustedModels:
    """The models that may be code: those named, or ``everyone``."""

    names: frozenset[str] = frozenset()
    everyone: bool = False

    @classmethod
    def of(cls, text: str) -> TrustedModels:
        """Read ``all``, ``none``, or names of models with commas between them."""
        names = frozenset(name for part in text.split(",") if (name := part.strip()))
        return cls(everyone=True) if text == "all" else cls(names - {"none"})

    def check(self, name: str, form: Format, path: str) -> None:
        """Refuse a model that is code and is not trusted.

        Raises:
            RepositoryError: which file, and how the operator allows it.
        """
        if form in CODE_FORMATS and not (self.everyone or name in self.names):
            raise RepositoryError(
                path,
                f"{MODEL_FILES[form]} ({form.value}), which is code, "
                f"in a model that is not trusted",
                f"ONNX or safetensors; or --trust-models {name} if you trust its author",
            )
