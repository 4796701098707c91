"""Section 6.2's three ConvNets: whole for schedulers that run them whole, by kernels for the ideal.

The paper gives the knee and the runtime of each, not those of the kernels ("computed" there). Here
the seven kernels of a LeNet, three convolutions, two poolings and two linear layers, have the parts
of the runtime and the demands below, the same for all three. Demands are scaled so that kernels
together use what the whole model uses at its knee: published throughputs and uses of the ideal and
of D-STACK stand in the same relation (86 / 95 %, "slightly higher than 90 %"), which is so only
then.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Final

from bench.papers.dstack.published import BATCH, CONVNETS
from bench.papers.dstack.slotted_schedule import Kernel
from bench.papers.dstack.trial import Case
from bench.papers.dstack.v100 import STEEP, profile
from interlace.core.profile import Profile

SLOT_MS: Final = 0.1
#: Part of the runtime and demand over the knee: conv, pool, conv, pool, conv, linear, linear.
_LAYERS: Final = (
    (0.30, 1.3),
    (0.06, 0.5),
    (0.26, 1.1),
    (0.06, 0.4),
    (0.22, 0.9),
    (0.06, 0.3),
    (0.04, 0.2),
)
ALIKE: Final = ((1.0, 1.0),)


def kernels(layers: Sequence[tuple[float, float]] = _LAYERS) -> dict[str, tuple[Kernel, ...]]:
    """Kernels of each model, with the use of the whole."""
    scale = sum(part * demand for part, demand in layers)
    return {
        model: tuple(
            Kernel(min(100.0, knee * demand / scale), run_ms * part) for part, demand in layers
        )
        for model, (knee, run_ms) in CONVNETS.items()
    }


def slos_ms() -> Mapping[str, float]:
    """Twice the runtime (equation 12), as none are given."""
    return {model: 2.0 * run_ms for model, (_, run_ms) in CONVNETS.items()}


def case(rates_rps: Mapping[str, float], steep: float = STEEP) -> Case:
    """The models run whole, one inference at a time: their batches are not given."""
    one = {
        m: _single(profile(m, knee, run_ms, steep=steep)) for m, (knee, run_ms) in CONVNETS.items()
    }
    knees = {m: knee for m, (knee, _) in CONVNETS.items()}
    return Case(rates_rps, one, knees, slos_ms(), batch=1)


def _single(known: Profile) -> Profile:
    """One inference, with the shape over shares that 16 rows have in the other figures."""
    points = {(1, share): point for (b, share), point in known.points.items() if b == BATCH}
    return replace(known, points=points)
