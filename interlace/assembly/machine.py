"""This machine as a device: which cores, how much memory, where things are kept."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path
from typing import Final

from interlace.core.errors import RepositoryError
from interlace.core.model import Format
from interlace.core.user_errors import InputError, UserError
from interlace.device.cpu.settings import CpuSettings
from interlace.repository.digest import Digests
from interlace.repository.draft import Draft, read
from interlace.repository.folder import ModelFolder, scan
from interlace.repository.remote import fetched_repository, is_remote


def find_models(root: Path, names: Collection[str]) -> list[ModelFolder]:
    """The folders of a repository, or those of them that are named.

    Raises:
        RepositoryError: there is no such repository.
        UserError: a name is not in it, or it is empty.
    """
    found = scan(root)
    unknown = sorted(set(names) - {one.name for one in found})
    if unknown:
        known = ", ".join(one.name for one in found)
        raise InputError(f"{root} has no model '{unknown[0]}'; it has {known or 'none'}")
    chosen = [one for one in found if not names or one.name in names]
    if not chosen:
        raise UserError(f"{root} holds no models: a model is a folder NAME/1/model.onnx")
    return chosen


def drafts(
    root: Path, found: Sequence[ModelFolder], failures: list[str], ensembles: bool = False
) -> Iterator[Draft]:
    """What the files say of every version; what is broken goes to ``failures``, in words.

    Either of models, or of ``ensembles``, whose members are models of the repository, too.
    """
    digests = Digests()
    for one in found:
        if one.error is not None:
            failures.append(f"{one.name}: {one.error}")
        for version in one.versions:
            try:
                draft = read(root, one.name, version, digests=digests)
            except RepositoryError as error:
                failures.append(f"{one.name}: {error}")
                continue
            if (draft.format is Format.ENSEMBLE) == ensembles:
                yield draft


PUBLIC: Final = "hf://"  #: repositories there are their authors', not the operator's
#: Part of the machine's memory that models may hold; the rest is for buffers and neighbours.
_MEMORY_PART = 0.8


def default_profiles() -> Path:
    """Where profiles are kept unless the operator says otherwise."""
    return _kept() / "profiles"


def fetched_models(node: str) -> Path:
    """Where a node of that name keeps the models that it fetches; the folder is made.

    Raises:
        OSError: it cannot be.
    """
    folder = _kept() / "fetched" / node.replace("/", "_")
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def local_repository(models: Path | str) -> Path:
    """A folder, or the one with what lies at a URL such as s3://bucket/models.

    Raises:
        RepositoryError: the URL cannot be read.
        ModuleNotFoundError: the library that reads it is not installed.
    """
    url = str(models)
    return fetched_repository(url, _kept() / "repositories") if is_remote(url) else Path(models)


def _kept() -> Path:
    try:
        return Path.home() / ".cache/interlace"
    except RuntimeError:  # a user without one
        return Path("/nonexistent/.cache/interlace")


def memory_bytes() -> int:
    """What models may hold of this machine's memory."""
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return int(total * _MEMORY_PART)


def cpu_settings(
    text: str | None, weights: Path | None = None, models: Path | None = None
) -> CpuSettings:
    """The cores of a list (see ``parse_cores``) as a device; ``weights`` are shared there.

    Its workers read ``models`` and no other files of users.

    Raises:
        UserError: not such a list, or a core that is not there.
    """
    return CpuSettings(
        parse_cores(text),
        memory_bytes(),
        str(weights) if weights else None,
        models_dir=str(models.resolve()) if models else "",
    )


def parse_cores(text: str | None) -> tuple[int, ...]:
    """Cores from a list such as ``0-3,6``; without one, all that this process may use.

    Raises:
        UserError: not such a list, or a core that is not there.
    """
    allowed = os.sched_getaffinity(0)
    if text is None:
        return tuple(sorted(allowed))
    cores: set[int] = set()
    for part in text.split(","):
        first, dash, last = part.strip().partition("-")
        if not first.isdigit() or (dash and not last.isdigit()):
            raise InputError(f"--cores {text}: expected core numbers such as 0-3,6")
        cores.update(range(int(first), int(last or first) + 1))
    missing = sorted(cores - allowed)
    if missing or not cores:
        have = ",".join(map(str, sorted(allowed)))
        raise InputError(f"--cores {text}: no core {missing[0] if missing else ''}; have {have}")
    return tuple(sorted(cores))
