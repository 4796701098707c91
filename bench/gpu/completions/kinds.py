"""The ways to learn that a batch has ended, by name: those of the server, and two more."""

from __future__ import annotations

from typing import Final, Literal, get_args

from bench.gpu.completions.event_sweep import EventSweep
from bench.gpu.completions.host_function import HostFunction
from interlace.device.cuda.completion import kinds
from interlace.device.cuda.completion.base import Completions
from interlace.device.cuda.driver.api import Driver

Kind = Literal["flags", "sweep", "blocking", "callback"]
KINDS: Final[tuple[Kind, ...]] = get_args(Kind)


def completions(kind: Kind, driver: Driver, lanes: int) -> Completions:
    """Completion of ``lanes`` lanes, numbered from 0.

    Raises:
        CudaError: the driver refused.
        NoCompilerError: nothing compiles the loop of ``flags``.
        OSError: no C compiler for the function of ``callback``.
    """
    match kind:
        case "sweep":
            return EventSweep(driver, lanes)
        case "callback":
            return HostFunction(driver, lanes)
        case _:
            return kinds.completions(kind, driver, lanes)
