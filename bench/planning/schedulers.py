"""The GPU and mixes of gpulet's evaluation, and the highest rates that a planner serves."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Final

from bench.harness import highest
from bench.planning.gpulet_profiles import MODELS, profiles
from interlace.core.gpu_kinds import uniform_fleet
from interlace.core.hardware import Gpu
from interlace.core.plan import Demand, Plan
from interlace.core.profile import Profile, Profiles
from interlace.policy.base import Planner

#: Section 3.2: an RTX 2080 Ti cut into (100), (20, 80), (40, 60) or (50, 50).
GPU: Final = Gpu(
    id="",
    kind="2080ti",
    units=68,
    memory_bytes=11 * 10**9,
    shares_pct=(20, 40, 50, 60, 80, 100),
    layouts=((20, 80), (40, 60), (50, 50), (100,)),
)

_LOWEST_RPS: Final = 1.0
_TOP_RPS: Final = 1e5

#: Figure 11 and Table 5, with the SLO of every model, in equal parts. Game runs six LeNets and a
#: ResNet side by side within 108 ms; traffic has 202 ms for two phases, half for each.
MIXES: Final[Mapping[str, Mapping[str, float]]] = MappingProxyType(
    {
        "game": {**{f"le{i}": 108.0 for i in range(1, 7)}, "res": 108.0},
        "traffic": {"ssd": 101.0, "goo": 101.0, "vgg": 101.0},
        "scen1": {m: MODELS[m][0] for m in ("mob", "be", "nas", "goo")},
        "scen2": {m: MODELS[m][0] for m in ("den", "vgg")},
        "scen3": {m: MODELS[m][0] for m in ("mob", "res", "vgg")},
        "scen4": {m: MODELS[m][0] for m in ("ssd", "nas", "den")},
        "scen5": {m: MODELS[m][0] for m in ("le", "ssd", "nas", "vgg")},
    }
)


def demand(rates_rps: Sequence[float]) -> list[Demand]:
    """One rate for each of the nine models; those of 0 are left out."""
    pairs = zip(MODELS.items(), rates_rps, strict=True)
    return [Demand(model, rate, slo_ms) for (model, (slo_ms, _)), rate in pairs if rate > 0]


def mix(name: str, rate_rps: float) -> list[Demand]:
    """A mix of the evaluation at ``rate_rps`` for each of its models."""
    return [Demand(model, rate_rps, slo_ms) for model, slo_ms in MIXES[name].items()]


def serves(
    planner: Planner, demand: Sequence[Demand], gpus: int, profiles: Profiles, gpu: Gpu = GPU
) -> bool:
    """Whether a scheduler's plan for so many GPUs serves all that is asked for."""
    return not planner(demand, uniform_fleet(gpu, gpus), profiles, Plan()).unserved_rows_per_s


def known() -> dict[str, Profile]:
    """The nine models, and the six LeNets of the game."""
    nine = profiles()
    copies = {f"le{i}": replace(nine["le"], model=f"le{i}") for i in range(1, 7)}
    return {**nine, **copies}


def largest_rps(holds: Callable[[float], bool], exactly: float) -> float:
    """The largest rate for which ``holds`` is true, within the factor ``exactly``.

    Found by doubling and halving, as if who serves a rate served all lower ones.
    """
    low = high = _LOWEST_RPS
    while high < _TOP_RPS and holds(high):
        low, high = high, high * 2.0
    return highest(holds, low, high, exactly)
