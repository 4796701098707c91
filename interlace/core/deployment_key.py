"""The key of one deployment, which requests, plans and devices call a model by."""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple


class DeploymentKey(NamedTuple):
    """One load of one version of a model; as text ``name/version#generation``.

    A model that is loaded again gets the next generation, so that the old deployment and the new
    one can serve side by side until traffic has moved.
    """

    name: str
    version: int
    generation: int = 0

    def __str__(self) -> str:
        return f"{self.name}/{self.version}#{self.generation}"

    @property
    def label(self) -> str:
        """How people call it: ``name/version``."""
        return f"{self.name}/{self.version}"

    @staticmethod
    @lru_cache(maxsize=1024)
    def parse(text: str) -> DeploymentKey:
        """The key from its text.

        Raises:
            ValueError: it is none.
        """
        path, _, generation = text.rpartition("#")
        name, _, version = path.rpartition("/")
        if not name or not (version.isdecimal() and generation.isdecimal()):
            raise ValueError(f"'{text}' is no deployment key: expected name/version#generation")
        return DeploymentKey(name, int(version), int(generation))


def model_name(model: str) -> str:
    """The name in a deployment key; planned models that are not deployed have a name alone."""
    path, _, generation = model.rpartition("#")
    return path.rpartition("/")[0] if generation.isdecimal() and "/" in path else model
