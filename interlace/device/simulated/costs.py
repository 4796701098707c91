"""What cutting an accelerator anew costs, by mechanism."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final


@dataclass(frozen=True, slots=True)
class MechanismCosts:
    """Times of a mechanism, in ms.

    ``carve_ms`` makes a partition that can load models, ``hand_over_ms`` is the pause of a model's
    first batch there: the moment in which an overlapped change swaps old for new.
    """

    carve_ms: float = 100.0
    release_ms: float = 1.0
    unload_ms: float = 1.0
    hand_over_ms: float = 0.0


#: By mechanism name.
MECHANISMS: Final[Mapping[str, MechanismCosts]] = MappingProxyType(
    {
        # A process with its own share: 10 to 15 s to reorganise (gpulet section 5.1), prepared
        # beside the old one, with a pause of 100 us at most at the switch (D-STACK section 3.2).
        "mps": MechanismCosts(carve_ms=12_500.0, release_ms=100.0, hand_over_ms=0.1),
        # A context and its streams in the process that serves already: no figure is published; the
        # CUDA guide (Green Contexts) says far lighter than MPS. An upper guess, to be measured.
        "green": MechanismCosts(carve_ms=1.0, release_ms=0.1, unload_ms=0.1),
        # About a second to remake instances (LithOS, SOSP 2025).
        "mig": MechanismCosts(carve_ms=1_000.0, release_ms=100.0),
        # Forked workers on cores: 16 to 40 ms measured (docs/benchmarks.md).
        "cores": MechanismCosts(carve_ms=30.0),
        # Not cut: streams or instances in a process that is there.
        "uncut": MechanismCosts(carve_ms=0.0, release_ms=0.0, unload_ms=1.0),
    }
)
