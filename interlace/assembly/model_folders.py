"""What lies in a repository, for commands that do not serve it."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from pathlib import Path

from interlace.core.errors import RepositoryError
from interlace.core.user_errors import UserError
from interlace.repository.digest import Digests
from interlace.repository.draft import Draft, read
from interlace.repository.folder import ModelFolder, scan


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
        raise UserError(f"{root} has no model '{unknown[0]}'; it has {known or 'none'}")
    chosen = [one for one in found if not names or one.name in names]
    if not chosen:
        raise UserError(f"{root} holds no models: a model is a folder NAME/1/model.onnx")
    return chosen


def drafts(root: Path, found: Sequence[ModelFolder], failures: list[str]) -> Iterator[Draft]:
    """What the files say of every version; what is broken goes to ``failures``, in words."""
    digests = Digests()
    for one in found:
        if one.error is not None:
            failures.append(f"{one.name}: {one.error}")
        for version in one.versions:
            try:
                yield read(root, one.name, version, digests=digests)
            except RepositoryError as error:
                failures.append(f"{one.name}: {error}")
