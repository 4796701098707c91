"""A parsed ModelConfig, and the line each of its keys stands on."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from typing import Any, Final

from interlace.core.errors import RepositoryError

#: Longer words are nobody's mistake for another.
_WORD_CHARS: Final = 128


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """Values as in the file: dicts, lists, strings, ints, floats, bools; enums are their names.

    ``lines`` maps paths such as ``input[0].dims`` to line numbers, where there are lines.
    """

    source: str = "config.pbtxt"
    values: Mapping[str, Any] = field(default_factory=dict)
    lines: Mapping[str, int] = field(default_factory=dict)

    def where(self, path: str) -> str:
        """File, line and key, as errors name them."""
        line = self.lines.get(path)
        return f"{self.source}: {path}" if line is None else f"{self.source}:{line}: {path}"

    def error(self, path: str, found: str, expected: str) -> RepositoryError:
        """A complaint about one key, to be raised."""
        return RepositoryError(self.where(path), found, expected)


def nearest_name(word: str, known: Mapping[str, Any]) -> str:
    """What somebody who wrote ``word`` may have meant, in words."""
    near = get_close_matches(word[:_WORD_CHARS], known, n=1, cutoff=0.5)
    return f"did you mean '{near[0]}'? Known: {', '.join(known)}" if near else ", ".join(known)
