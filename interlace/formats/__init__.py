"""One file a model format: from a version folder to something that runs on numpy arrays."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Final

from interlace.core.errors import RepositoryError
from interlace.core.model import Format, Model
from interlace.core.work import ModelWork
from interlace.formats.arrays import sample_shape
from interlace.formats.model_file import place_of
from interlace.formats.runner import CallModels, ModelRunner

if TYPE_CHECKING:  # it needs torch
    from interlace.formats.opened import OpenedModel

#: Torch formats by the module that has ``open_call(model)``. It is imported when first needed, so a
#: worker that serves ONNX models never imports torch.
_TORCH_MODULES: Final = {
    Format.TORCHSCRIPT: "interlace.formats.torchscript",
    Format.EXPORTED: "interlace.formats.exported",
    Format.HUGGINGFACE: "interlace.formats.huggingface",
    Format.FACTORY: "interlace.formats.factory",
}


def open_model(
    model: Model, threads: int, weights_dir: str | None, call: CallModels | None = None
) -> ModelRunner:
    """Load a model into this process.

    ``threads`` is how many the model may use for one execution. With ``weights_dir`` its weights
    lie there in a file that all processes map; ``None`` keeps them private. A model whose
    signature is empty or partial is opened all the same if it can describe itself. The code of a
    model may load others by ``call`` meanwhile.

    Raises:
        RepositoryError: the model's files are broken, or say less than is needed to run it.
        MemoryError: no memory for it.
    """
    with _in_words(model):
        if model.format is Format.ONNX:
            from interlace.formats.onnx import open_runner

            return open_runner(model, threads, weights_dir)
        if model.format is Format.PYTHON:
            from interlace.formats.python_backend.runner import PythonRunner

            return PythonRunner(model, threads, call)
        open_call = _torch_format(model)
        from interlace.formats.torch_runner import open_on_cpu

        return open_on_cpu(open_call, model, threads, weights_dir)


def shared_architecture(model: Model, weights_dir: str | None) -> str:
    """What models have in common that can take turns with one open module; empty if unknown.

    Known of a model whose weights were laid out in ``weights_dir`` before. Nothing is opened.
    """
    if model.format in (Format.ONNX, Format.PYTHON, Format.TENSORRT):
        return ""
    from interlace.formats import torch_sharing

    return torch_sharing.shared_architecture(model, weights_dir)


def open_torch(model: Model) -> OpenedModel:
    """Open a model of a torch format on the CPU, to be moved to where it shall run.

    Raises:
        RepositoryError: ONNX, which torch does not run, or as ``open_model``.
        MemoryError: no memory for it.
    """
    if model.format is Format.ONNX:
        raise RepositoryError(model.path, "an ONNX model", "a format that torch runs")
    with _in_words(model):
        return _torch_format(model)(model)


def count_work(model: Model) -> ModelWork:
    """What the model computes for one row, from its graph; torch models run once on the CPU.

    Raises:
        RepositoryError: as ``open_model``.
        MemoryError: no memory for it.
    """
    if model.format is Format.ONNX:
        from interlace.formats import onnx_work

        sizes = {
            spec.name: spec.model_shape(sample_shape(spec, model.sample))
            if spec.name in model.sample
            else spec.own.dims
            for spec in model.signature.inputs
        }
        return onnx_work.count(model.source, {**model.sample, **sizes})
    opened = open_torch(model)
    from interlace.formats import torch_work
    from interlace.formats.torch_runner import sample_of

    with _in_words(model):
        values = sample_of(opened, model)
        return torch_work.count(lambda: opened.call(values), opened.tensors.values())


def _torch_format(model: Model) -> Callable[[Model], OpenedModel]:
    if model.format is Format.PYTHON:
        expected = "a format that torch runs, or cores to serve it on (--device cpu)"
        raise RepositoryError(model.path, "a TritonPythonModel", expected)
    if model.format is Format.TENSORRT:
        raise on_gpus_alone(model.path)
    if model.format is Format.PROFILE:
        expected = "a model file, or interlace serve --device simulated, which needs none"
        raise RepositoryError(model.path, "profile.csv alone", expected)
    open_call: Callable[[Model], OpenedModel] = import_module(
        _TORCH_MODULES[model.format]
    ).open_call
    return open_call


def on_gpus_alone(path: str) -> RepositoryError:
    """Why a TensorRT plan is not opened here."""
    expected = "a GPU to serve it on (--device cuda), or the ONNX model that it was built from"
    return RepositoryError(path, "a TensorRT plan", expected)


@contextmanager
def _in_words(model: Model) -> Iterator[None]:
    try:
        yield
    except (RepositoryError, MemoryError):
        raise
    except (Exception, SystemExit) as error:  # libraries raise anything on a broken file
        if model.source.is_file() and not model.source.stat().st_size:
            expected = f"a model of {model.format.value}"
            raise RepositoryError(str(model.source), "an empty file", expected) from error
        lines = str(error).strip().splitlines() or [""]
        place = place_of(error, Path(model.path).parent)
        found = f"a model that does not load ({type(error).__name__}: {lines[0][:500]}{place})"
        expected = f"a working {model.format.value} model"
        raise RepositoryError(model.path, found, expected) from error
