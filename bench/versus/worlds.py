"""The papers' workloads: models with rates in proportion, SLOs, and the GPUs they ran on."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Final

from bench.papers.dstack.v100 import TABLE_6, V100
from bench.papers.dstack.v100 import profiles as dstack_profiles
from bench.papers.e2bird import titan
from bench.planning.gpulet_profiles import profiles as gpulet_profiles
from bench.planning.kept import random_scenario
from bench.planning.schedulers import GPU as TURING
from bench.planning.schedulers import MIXES, mix
from interlace.core.gpu_kinds import uniform_fleet
from interlace.core.hardware import Fleet, Gpu
from interlace.core.plan import Demand
from interlace.core.profile import Profile
from interlace.packing.bounds import lower_bound
from interlace.planning.scenario import read_scenario

_ROOT: Final = Path(__file__).resolve().parents[2]


@dataclass(frozen=True)
class World:
    """Some GPUs, some models, and rates of which only the proportions count."""

    name: str
    source: str
    gpu: Gpu
    gpus: int
    demand: tuple[Demand, ...]
    profiles: Mapping[str, Profile]

    @property
    def fleet(self) -> Fleet:
        return uniform_fleet(self.gpu, self.gpus)

    def at(self, factor: float, cv: float = 1.0) -> tuple[Demand, ...]:
        """The demand with every rate times a factor."""
        return tuple(replace(d, rows_per_s=d.rows_per_s * factor, cv=cv) for d in self.demand)

    @cached_property
    def ceiling(self) -> float:
        """The factor on every rate at which no scheduler needs fewer than all the GPUs.

        Of the lower bound (area, layouts) before it is rounded up, which grows with the rates.
        """
        low, high = 1e-4, 1e4
        for _ in range(40):
            middle = (low * high) ** 0.5
            bound = lower_bound(self.at(middle), self.gpu, self.profiles)
            fits = bound.best.accelerators <= self.gpus
            low, high = (middle, high) if fits else (low, middle)
        return low


#: What the names of drawn workloads begin with; their seed follows.
CROWD: Final = "crowd-"


def crowd(seed: int) -> World:
    """Drawn: 20 to 60 models, of which few are asked for often, on one to three GPUs."""
    asked = random_scenario(seed, (20, 60))
    name = f"{CROWD}{seed}"
    return World(name, "drawn", asked.gpu, 1 + seed % 3, asked.demand, asked.profiles)


def worlds() -> list[World]:
    """Every workload; rates as the papers give them, where they do."""
    found = [_gpulet(name) for name in MIXES]
    found += [_dstack(name, steep) for steep in _LAWS for name in _DSTACK]
    found.append(_e2bird())
    found.append(_nine())
    return found


def _gpulet(name: str) -> World:
    demand = tuple(mix(name, 100.0))
    profiles = gpulet_profiles()
    held = {d.model: profiles["le" if d.model.startswith("le") else d.model] for d in demand}
    return World(f"gpulet {name}", "gpulet Figure 11, Table 5", TURING, 4, demand, held)


#: Section 7: rates in requests per second for C-2 to C-4, and for C-7.
_RATES: Final = {"resnet50": 320.0, "vgg19": 160.0, "bert": 320.0, "mobilenet": 700.0}
_RATES_7: Final = {
    "mobilenet": 440.0, "resnet18": 440.0, "bert": 220.0, "resnet50": 220.0, "inception": 220.0,
    "resnext50": 80.0, "vgg19": 80.0,
}  # fmt: skip
_DSTACK: Final = {
    "C-2": {m: _RATES[m] for m in ("resnet50", "vgg19")},
    "C-3": {m: _RATES[m] for m in ("resnet50", "vgg19", "bert")},
    "C-4": dict(_RATES),
    "C-7": _RATES_7,
}


#: How much of the V100 a row costs below the knee, as a power of knee / share: about what the
#: authors' own logs show, and what their figures need.
_LAWS: Final = {0.0: "", 1.0: " steep"}


def _dstack(name: str, steep: float) -> World:
    names = {_plain(key): key for key in TABLE_6}
    demand = tuple(
        Demand(names[model], rate, TABLE_6[names[model]].slo_ms, 16)
        for model, rate in _DSTACK[name].items()
    )
    profiles = dstack_profiles(steep=steep)
    held = {d.model: profiles[d.model] for d in demand}
    return World(
        f"D-STACK {name}{_LAWS[steep]}", "D-STACK section 7, Table 6", V100, 1, demand, held
    )


def _plain(name: str) -> str:
    return "".join(letter for letter in name.lower() if letter.isalnum())


def _e2bird() -> World:
    model = "res152"
    demand = (Demand(model, 100.0, 200.0, 32),)
    return World(
        "E2bird res152", "E2bird Table 1", titan.GPU, 1, demand, {model: titan.profile(model)}
    )


def _nine() -> World:
    asked = read_scenario(_ROOT / "examples" / "planning" / "nine.toml")
    return World("nine models", "examples/planning", asked.gpu, 3, asked.demand, asked.profiles)
