"""What an attack is, and what it found."""

import tempfile
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from bench.attack.bystander import MODEL, SLO_MS
from bench.attack.repository import write_model
from bench.attack.stand import Stand
from bench.attack.traffic import Target

#: Two models that do as they are told, for verified traffic; one of them is killed and reloaded.
VICTIM: Final = Target("victim", 2.0)
OTHER: Final = Target("other", 5.0)


@dataclass(slots=True)
class Result:
    """What was tried, what must never be and was seen all the same, and figures."""

    tried: int
    broken: Counter[str] = field(default_factory=Counter)
    figures: dict[str, Any] = field(default_factory=dict)


def grown(before: Mapping[str, float], after: Mapping[str, float], *names: str) -> dict[str, str]:
    """What the server held before and after, where it can grow."""
    return {name: f"{before[name]:g} -> {after[name]:g}" for name in names}


@dataclass(frozen=True, slots=True)
class Ground:
    """Where attacks run: a folder for repositories and profiles, how much of each, which seed."""

    folder: Path
    scale: float = 1.0
    seed: int = 1

    def count(self, number: int, least: int = 1) -> int:
        """That many of something, scaled."""
        return max(least, round(number * self.scale))

    def repository(self) -> Path:
        """A new folder with the models that every attack may count on."""
        root = Path(tempfile.mkdtemp(dir=self.folder))
        write_model(root, MODEL.model, MODEL.factor, SLO_MS)
        write_model(root, VICTIM.model, VICTIM.factor, 100.0)
        write_model(root, OTHER.model, OTHER.factor, 100.0)
        return root

    def start(self, root: Path) -> Stand:
        """A server over that repository; profiles of the same models are measured once."""
        return Stand(root, self.folder / "profiles")


@dataclass(frozen=True, slots=True)
class Attack:
    """One attack on a server that is ready; ``own`` if it starts servers itself instead."""

    name: str
    about: str
    run: Callable[[Ground, Stand], Result] | Callable[[Ground], Result]
    own: bool = False
