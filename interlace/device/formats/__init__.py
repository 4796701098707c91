"""One file a model format: from a version folder to something that runs on numpy arrays."""

from __future__ import annotations

from importlib import import_module
from typing import Final

from interlace.core.errors import RepositoryError
from interlace.core.model import Format, Model
from interlace.device.formats.base import Runner

#: Each module has ``open_runner(model, threads, weights_dir)``; it is imported when first needed,
#: so a worker that serves ONNX models never imports torch.
_MODULES: Final = {
    Format.ONNX: "interlace.device.formats.onnx",
    Format.TORCHSCRIPT: "interlace.device.formats.torchscript",
    Format.EXPORTED: "interlace.device.formats.exported",
    Format.HUGGINGFACE: "interlace.device.formats.huggingface",
    Format.FACTORY: "interlace.device.formats.factory",
}


def open_model(model: Model, threads: int, weights_dir: str | None) -> Runner:
    """Load a model into this process.

    ``threads`` is how many the model may use for one execution. With ``weights_dir`` its weights
    lie there in a file that all processes map; ``None`` keeps them private. A model whose
    signature is empty or partial is opened all the same if it can describe itself.

    Raises:
        RepositoryError: the model's files are broken, or say less than is needed to run it.
        MemoryError: no memory for it.
    """
    module = import_module(_MODULES[model.format])
    try:
        runner: Runner = module.open_runner(model, threads, weights_dir)
    except (RepositoryError, MemoryError):
        raise
    except Exception as error:  # libraries raise anything on a broken file
        lines = str(error).strip().splitlines() or [""]
        raise RepositoryError(
            model.path,
            f"a model that does not load ({type(error).__name__}: {lines[0][:500]})",
            f"a working {model.format.value} model",
        ) from error
    return runner
