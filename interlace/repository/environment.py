"""The packed environment that a Python backend model names (``EXECUTION_ENV_PATH``)."""

from __future__ import annotations

import hashlib
import json
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from pathlib import Path
from typing import Final

from interlace.core.errors import RepositoryError
from interlace.repository.model_config import ModelConfig

_PARAMETER: Final = "EXECUTION_ENV_PATH"
_FOLDER: Final = "$$TRITON_MODEL_DIRECTORY"
#: The least version of Interlace's own code, and the packages that a worker needs.
_LEAST: Final = (3, 11)
_ASK: Final = (
    "import json, sys, importlib.util as u; "
    "print(json.dumps([sys.version_info[:2], all(map(u.find_spec, ('msgspec', 'numpy')))]))"
)
_UNPACK_S: Final = 600.0


def environment_of(config: ModelConfig, folder: Path) -> str:
    """The archive or folder of a model's environment; empty if it has none of its own.

    Raises:
        RepositoryError: there is no such file or folder here.
    """
    written = config.values.get("parameters", {}).get(_PARAMETER, {}).get("string_value", "")
    if not written:
        return ""
    path = folder / written.replace(_FOLDER, str(folder.absolute()))
    if not (path.is_file() or (path / "bin" / "python").exists()):
        key = f"parameters['{_PARAMETER}']"
        raise config.error(key, f"'{written}'", "an archive of conda-pack, or an unpacked one")
    return str(path.absolute())


def stamp(environment: str) -> str:
    """A text that changes with an environment's archive or folder; empty for none."""
    if not environment:
        return ""
    status = Path(environment).stat()
    return f"{environment} {status.st_size} {status.st_mtime_ns}"


def unpacked(environment: str, cache: Path) -> str:
    """The folder of an environment, unpacked to ``cache`` where that was not done before.

    Takes long for large archives.

    Raises:
        RepositoryError: it cannot be unpacked, or a worker cannot run in it.
    """
    folder = Path(environment)
    if not folder.is_dir():
        folder = cache / hashlib.sha256(stamp(environment).encode()).hexdigest()[:32]
        if not folder.exists():
            _unpack(environment, folder)
    _check(environment, folder)
    return str(folder)


def _unpack(archive: str, folder: Path) -> None:
    folder.parent.mkdir(parents=True, exist_ok=True)
    into = Path(tempfile.mkdtemp(prefix="unpacking-", dir=folder.parent))
    try:
        with tarfile.open(archive) as packed:
            packed.extractall(into, filter="tar")
        mend = into / "bin" / "conda-unpack"
        if mend.exists():  # paths that were written when it was packed
            command = [str(into / "bin" / "python"), str(mend)]
            subprocess.run(command, check=True, capture_output=True, timeout=_UNPACK_S)
        into.rename(folder)
    except Exception as error:  # of broken archives tarfile raises anything
        shutil.rmtree(into, ignore_errors=True)
        if not folder.exists():  # else another server was faster
            lines = str(error).splitlines() or [type(error).__name__]
            found = "a zip archive" if zipfile.is_zipfile(archive) else lines[0].rstrip(":")
            expected = "an archive of conda-pack (.tar.gz): pack it again, or copy it again"
            raise RepositoryError(archive, found, expected) from error


def _check(environment: str, folder: Path) -> None:
    """A worker runs in the environment's Python with Interlace's own code."""
    python, own = str(folder / "bin" / "python"), sys.version_info[:2]
    try:
        answer = subprocess.run(
            [python, "-c", _ASK], check=True, capture_output=True, timeout=_UNPACK_S, text=True
        ).stdout
    except (OSError, subprocess.SubprocessError) as error:
        raise RepositoryError(environment, str(error), "bin/python that runs here") from error
    (major, minor), complete = json.loads(answer)
    if (major, minor) != own and not (complete and (major, minor) >= _LEAST):
        expected = (
            f"Python {own[0]}.{own[1]}, that of the server; or at least "
            f"{_LEAST[0]}.{_LEAST[1]} with msgspec and numpy"
        )
        raise RepositoryError(environment, f"Python {major}.{minor}", expected)
