"""Param-Share for ONNX: the optimised model saved once, its weights mapped by every worker."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, NoReturn

import msgspec
import onnxruntime as ort

from interlace.core.errors import RepositoryError
from interlace.core.model import Model
from interlace.formats.machine import machine_key
from interlace.formats.onnx_layout import GRAPH, USES, WEIGHTS, OnnxWeightsFile, lay_out, write_uses
from interlace.formats.page_cache import open_regular
from interlace.formats.runner import Extent
from interlace.formats.session_weights import SessionWeights, mapped_pieces
from interlace.formats.weights_folder import checksum, discard_broken, publish, tell_damaged

#: Smaller constants stay inside the graph file: each other one is a mapping in each session.
_EXTERNAL_FROM_BYTES: Final = 16 << 10
#: To be raised when the files are written in another way, so that old ones are not looked at.
_REVISION: Final = "5"
#: The checksums of the other files of a folder.
_CHECKSUMS: Final = "checksums.json"
_PROVIDERS: Final = ["CPUExecutionProvider"]


@dataclass(frozen=True, slots=True)
class OptimisedModel:
    """Which file to open, and what is known of its weights."""

    path: Path
    total_bytes: int
    shared_bytes: int = 0
    warnings: tuple[str, ...] = ()


def session_options(threads: int) -> Any:
    """Options every session has: these threads and no others, which sleep when idle."""
    options = ort.SessionOptions()
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    options.log_severity_level = 3
    # Spinning threads would take the cores of the neighbours.
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    options.add_session_config_entry("session.inter_op.allow_spinning", "0")
    return options


def open_optimised(graph: Path, options: Any) -> Any:
    """A session on an optimised graph, which is taken as it stands."""
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    return ort.InferenceSession(str(graph), options, providers=_PROVIDERS)


def open_shared(optimised: OptimisedModel, options: Any) -> tuple[Any, SessionWeights]:
    """Open a session on a shared model; return it and its weights, which can be swapped.

    Raises:
        OSError: the description of its weights cannot be read.
        ValueError: this version of onnxruntime does not map them as they lie in their file.
    """
    folder = optimised.path.parent
    before = mapped_pieces(folder / WEIGHTS)
    session = open_optimised(optimised.path, options)
    pieces = mapped_pieces(folder / WEIGHTS) - before
    file = OnnxWeightsFile(folder)
    # Another thread may have mapped the file meanwhile, all of it, to read it ahead.
    parts = {piece for piece in pieces if piece.nbytes < file.nbytes}
    return session, SessionWeights(file, parts or pieces)


def optimised_model(source: Path, model: Model, weights_dir: str | None) -> OptimisedModel:
    """The shared, optimised form of a model, made by the first who asks.

    It is one folder: the graph, and beside it the constants both as the graph has them and as the
    kernels pack them, so that onnxruntime maps either and copies neither. It holds for this
    processor and this onnxruntime only, and is named so. Without a usable ``weights_dir`` the
    model's own file is what to open, and ``warnings`` say why. One that is not whole is made anew.
    """
    own = OptimisedModel(source, _model_bytes(source))
    if weights_dir is None:
        return own
    name = f"{model.digest}-{machine_key(ort.__version__, _REVISION)}.onnx"
    folder = Path(weights_dir) / name
    try:
        if not _is_whole(folder):
            discard_broken(folder, _is_whole)
            publish(folder, lambda draft: _write(source, draft))
    except OSError as error:
        warning = f"weights of {model.name} are private, not shared: {error}"
        return OptimisedModel(source, own.total_bytes, 0, (warning,))
    if not (folder / WEIGHTS).exists():  # a graph with no constants worth sharing
        return own
    return OptimisedModel(folder / GRAPH, own.total_bytes, own.total_bytes)


def _is_whole(folder: Path) -> bool:
    try:
        with open_regular(folder / _CHECKSUMS) as file:
            wanted = msgspec.json.decode(file.read(), type=dict[str, int])
        if _checksums(folder) == wanted and GRAPH in wanted:
            return True
    except FileNotFoundError:
        return False
    except (ValueError, RepositoryError):
        pass
    tell_damaged(folder)
    return False


def _checksums(folder: Path) -> dict[str, int]:
    files = [folder / name for name in (GRAPH, WEIGHTS, USES)]
    return {file.name: checksum(file, file.stat().st_size) for file in files if file.exists()}


def _write(source: Path, folder: Path) -> None:
    try:
        _save(source, folder, packed=True)
    except ValueError:  # packed in a way that cannot be laid out: every worker packs for itself
        shutil.rmtree(folder)
        _save(source, folder, packed=False)
    (folder / _CHECKSUMS).write_bytes(msgspec.json.encode(_checksums(folder)))


def _save(source: Path, folder: Path, packed: bool) -> None:
    folder.mkdir()
    options = session_options(threads=1)
    options.optimized_model_filepath = str(folder / GRAPH)
    for key, value in (
        ("session.optimized_model_external_initializers_file_name", WEIGHTS),
        (
            "session.optimized_model_external_initializers_min_size_in_bytes",
            str(_EXTERNAL_FROM_BYTES),
        ),
        ("session.save_external_prepacked_constant_initializers", str(int(packed))),
    ):
        options.add_session_config_entry(key, value)
    try:
        ort.InferenceSession(str(source), options, providers=_PROVIDERS)
    except Exception as error:
        _tell_disk_from_model(source, error)
    if (folder / WEIGHTS).exists():
        pieces = lay_out(folder / GRAPH, folder / WEIGHTS)
        session = open_optimised(folder / GRAPH, session_options(threads=1))
        kept = [Extent(*one[1:]) for one in mapped_pieces(folder / WEIGHTS)]
        write_uses(folder, pieces, kept)
        del session


def _tell_disk_from_model(source: Path, error: Exception) -> NoReturn:
    # onnxruntime has no error type for a full disk: if the model opens without being written,
    # writing was what failed.
    ort.InferenceSession(str(source), session_options(1), providers=_PROVIDERS)
    reason = str(error).strip().splitlines()[-1][-160:]
    raise OSError(f"the optimised model could not be written (... {reason})") from error


def _model_bytes(source: Path) -> int:
    return sum(
        entry.stat().st_size
        for entry in source.parent.iterdir()
        if entry.is_file() and entry.suffix not in (".json", ".txt", ".md")
    )
