"""A model that is declared by its profile: there is nothing to open."""

from __future__ import annotations

from typing import NoReturn

from interlace.core.errors import RepositoryError
from interlace.core.model import Model


def open_runner(model: Model, threads: int, weights_dir: str | None) -> NoReturn:
    """Refuse.

    Raises:
        RepositoryError: always; what such a model is for.
    """
    raise _nothing_to_open(model)


def open_call(model: Model) -> NoReturn:
    """As ``open_runner``."""
    raise _nothing_to_open(model)


def _nothing_to_open(model: Model) -> RepositoryError:
    expected = "a model file, or interlace serve --device simulated, which needs none"
    return RepositoryError(model.path, "profile.csv alone", expected)
