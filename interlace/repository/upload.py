"""Model files that came with a load request, put where ``read`` finds them, or refused."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from pathlib import Path, PurePosixPath
from typing import Final

from interlace.core.errors import RepositoryError
from interlace.repository.folder import check_name

#: What a client may send: graphs and plain tensors. TorchScript and torch.export archives are
#: programs, and Python is Python: those come from the operator's own repository only.
_ALLOWED: Final = (".onnx", ".data", ".onnx_data", ".safetensors", ".json", ".txt")
_FILES_LIMIT: Final = 256


def write_upload(parent: Path, name: str, files: Mapping[str, bytes]) -> Path:
    """Write ``files`` as a repository of one model in a new folder below ``parent``.

    ``files`` maps paths in the model folder, such as ``1/model.onnx``, to contents. Returns the
    repository's root, for ``scan`` and ``read``; the caller removes it after use.

    Raises:
        RepositoryError: a path leads out of the version folder, or is of a refused kind.
        OSError: no space or no permission.
    """
    check_name(name)
    if not 0 < len(files) <= _FILES_LIMIT:
        raise RepositoryError(f"files of '{name}'", f"{len(files)} files", f"1 to {_FILES_LIMIT}")
    checked = {_checked(path, name): content for path, content in files.items()}
    root = Path(tempfile.mkdtemp(prefix="sent-", dir=parent))
    for path, content in checked.items():
        target = root / name / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(content)
    return root


def _checked(text: str, name: str) -> PurePosixPath:
    where = f"files of '{name}'"
    path = PurePosixPath(text)
    clean = path.as_posix() == text and not path.is_absolute() and "\\" not in text
    hidden = any(part.startswith(".") or not part.isprintable() for part in path.parts)
    if not clean or hidden or len(path.parts) < 2 or len(text) > 512:
        raise RepositoryError(where, f"path {text!r}", "VERSION/FILE, such as 1/model.onnx")
    if not path.parts[0].isdigit() or path.parts[0].startswith("0"):
        raise RepositoryError(where, f"path {text!r}", "a version number first, as 1/model.onnx")
    if path.suffix not in _ALLOWED:
        raise RepositoryError(
            where, f"path {text!r}", f"one of {', '.join(_ALLOWED)}; code is not taken from clients"
        )
    return path
