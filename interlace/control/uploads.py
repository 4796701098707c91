"""Model files that came with a load: each set is a repository of one model, while that serves."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from contextlib import ExitStack
from pathlib import Path, PurePosixPath
from shutil import rmtree
from tempfile import mkdtemp
from typing import Final
from weakref import finalize

from interlace.core.errors import Reason, ServeError, bad_input
from interlace.formats.weights_folder import temporary_folder
from interlace.repository.folder import leads_out
from interlace.server.limits import FILES_BYTES

#: Files of one load, and models that have any, at most.
_FILES: Final = 256
_MODELS: Final = 64


class Uploads:
    """Files by the name of their model, in a folder that goes with this process."""

    def __init__(self) -> None:
        ends = ExitStack()
        self.folder = ends.enter_context(temporary_folder("files"))  #: where they all lie
        finalize(self, ends.close)
        self._kept: dict[str, list[Path]] = {}

    async def write(self, name: str, files: Mapping[str, bytes]) -> Path:
        """Keep files of a model until ``drop_unused``; returns the repository that they are.

        Raises:
            ServeError: BAD_INPUT, too many files or bytes, or a path that leads out of the model's
                folder; OVERLOADED, too many models have files; BACKEND, they cannot be written.
        """
        _check(name, files)
        if name not in self._kept and len(self._kept) >= _MODELS:
            text = f"failed to load '{name}': {_MODELS} models have files of their own: unload some"
            raise ServeError(Reason.OVERLOADED, text)
        try:
            root = Path(mkdtemp(dir=self.folder))
            self._kept.setdefault(name, []).append(root)
            await asyncio.to_thread(_write, root / name, files)
        except OSError as error:
            text = f"failed to load '{name}', failed to poll from model repository: its files "
            text += f"could not be written: {error.strerror}"
            raise ServeError(Reason.BACKEND, text) from error
        return root

    def drop_unused(self, name: str, used: Iterable[str]) -> None:
        """Remove the files of a model but for those in which one of the ``used`` folders lies."""
        folders = [Path(one) for one in used]
        kept = []
        for root in self._kept.pop(name, ()):
            if any(folder.is_relative_to(root) for folder in folders):
                kept.append(root)
            else:
                rmtree(root, ignore_errors=True)
        if kept:
            self._kept[name] = kept


def _check(name: str, files: Mapping[str, bytes]) -> None:
    total = sum(map(len, files.values()))
    if len(files) > _FILES or total > FILES_BYTES:
        text = f"{len(files)} files of {total} bytes; expected at most {_FILES} of {FILES_BYTES}"
        raise bad_input(f"failed to load '{name}': {text} bytes")
    for path in files:
        if not PurePosixPath(path).parts or leads_out(path) or not path.isprintable():
            expected = "a path in the model's folder, such as file:1/model.py"
            shown = ascii(path[:128])[1:-1]
            raise bad_input(f"failed to load '{name}': 'file:{shown}': expected {expected}")


def _write(folder: Path, files: Mapping[str, bytes]) -> None:
    for path, data in files.items():
        file = folder / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(data)
