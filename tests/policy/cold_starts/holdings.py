"""Models that hold some of an accelerator's memory, to decide about."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache

from hypothesis import strategies as st

from interlace.core.loading import HostLinks
from interlace.core.profile import LayerProfile
from interlace.policy.cold_curve import ColdCurve
from interlace.policy.cold_policy import Holding
from interlace.policy.cold_starts.frontier import lasting
from tests.policy.cold_starts.layers import layer_lists


@dataclass(frozen=True, slots=True)
class Held:
    """One model's state, as a policy sees it."""

    model: str
    curve: ColdCurve
    held: frozenset[int]
    rate_rps: float = 1.0
    last_start_ms: float = 0.0
    fetching: bool = False
    may_leave: bool = True

    @property
    def sure_rps(self) -> float:
        return self.rate_rps

    def without(self, layers: tuple[int, ...]) -> Held:
        return replace(self, held=self.held.difference(layers))


@cache
def blocks(count: int = 8, copy_ms: float = 1.0) -> ColdCurve:
    """Layers alike, for which the link is slower than execution: 100 bytes and 1 ms each."""
    layers = [LayerProfile(f"l{n}", 100, copy_ms, 0.1, 90.0, "Linear") for n in range(count)]
    return ColdCurve(lasting, layers, HostLinks())


def whole(
    model: str, rate_rps: float = 1.0, last_start_ms: float = 0.0, leaves: bool = True
) -> Held:
    """A model of ``blocks`` that is there."""
    curve = blocks()
    return Held(model, curve, frozenset(range(8)), rate_rps, last_start_ms, may_leave=leaves)


@st.composite
def held_models(draw: st.DrawFn) -> list[Holding]:
    found: list[Holding] = []
    curves = [
        ColdCurve(lasting, draw(layer_lists(8)), draw(st.sampled_from(_LINKS))) for _ in range(2)
    ]
    for number in range(draw(st.integers(1, 6))):
        curve = draw(st.sampled_from(curves))
        places = st.integers(0, len(curve.layers) - 1)
        held = frozenset(i for i in draw(st.frozensets(places)) if curve.layers[i].weights_bytes)
        rate, last = float(draw(st.integers(0, 3))), float(draw(st.integers(0, 3)))
        found.append(Held(f"m{number}", curve, held, rate, last, False, draw(st.booleans())))
    return found


_LINKS = [HostLinks(), HostLinks(takes_cores=True)]
