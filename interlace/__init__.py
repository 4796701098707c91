"""Interlace: many models on few accelerators, every latency promise kept.

The main calls::

    found = interlace.plan("scenario.toml")         # how few accelerators do, and how they are cut
    played = interlace.simulate("scenario.toml")    # what becomes of its requests, in virtual time
    with interlace.serve("models/") as server: ...  # KServe v2 over HTTP and gRPC

Planning and simulation need no accelerator, and neither torch nor ONNX Runtime.
"""

from __future__ import annotations

from importlib import import_module
from types import MappingProxyType
from typing import TYPE_CHECKING

from interlace.compiled import prefer_sources_if_changed

prefer_sources_if_changed()  # before any module that may be machine code of other sources

from interlace.core.user_errors import remedy  # noqa: E402
from interlace.core.version import __version__  # noqa: E402

if TYPE_CHECKING:
    from interlace.assembly.live_server import ServeOptions
    from interlace.assembly.server import Server, serve
    from interlace.core.errors import RepositoryError, ServeError, bad_input
    from interlace.core.gpu_kinds import GPU_KINDS
    from interlace.core.hardware import Gpu
    from interlace.core.plan import Demand
    from interlace.core.profile import Profile
    from interlace.core.user_errors import InputError, UserError
    from interlace.planning.capacity_plan import CapacityPlan, plan
    from interlace.planning.scenario import Scenario, read_scenario
    from interlace.planning.simulation import SimulationResult, simulate

__all__ = [
    "GPU_KINDS",
    "CapacityPlan",
    "Demand",
    "Gpu",
    "InputError",
    "Profile",
    "RepositoryError",
    "Scenario",
    "ServeError",
    "ServeOptions",
    "Server",
    "SimulationResult",
    "UserError",
    "__version__",
    "bad_input",
    "plan",
    "read_scenario",
    "serve",
    "simulate",
]

#: Where each name is; imported when it is first asked for.
_HOMES = MappingProxyType(
    {
        "interlace.assembly.live_server": ("ServeOptions",),
        "interlace.assembly.server": ("Server", "serve"),
        "interlace.core.errors": ("RepositoryError", "ServeError", "bad_input"),
        "interlace.core.gpu_kinds": ("GPU_KINDS",),
        "interlace.core.hardware": ("Gpu",),
        "interlace.core.plan": ("Demand",),
        "interlace.core.profile": ("Profile",),
        "interlace.core.user_errors": ("InputError", "UserError"),
        "interlace.planning.capacity_plan": ("CapacityPlan", "plan"),
        "interlace.planning.scenario": ("Scenario", "read_scenario"),
        "interlace.planning.simulation": ("SimulationResult", "simulate"),
    }
)


def __getattr__(name: str) -> object:
    for module, names in _HOMES.items():
        if name in names:
            try:
                return getattr(import_module(module), name)
            except ModuleNotFoundError as error:
                raise ModuleNotFoundError(remedy(error) or str(error), name=error.name) from error
    raise AttributeError(f"module 'interlace' has no attribute '{name}'")


def __dir__() -> list[str]:
    return __all__
