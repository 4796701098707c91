"""Whether a plan that came from outside can be carried out on this node."""

from __future__ import annotations

from collections.abc import Sequence

from interlace.core.errors import Reason, ServeError
from interlace.core.hardware import Fleet
from interlace.core.plan import Partition, possible


def check_plan(partitions: Sequence[Partition], fleet: Fleet) -> None:
    """Refuse partitions that no accelerator here can have.

    Raises:
        ServeError: BAD_INPUT; which partition, what is wrong, what is expected.
    """
    there = {gpu.id: gpu for gpu in fleet.gpus}
    ids = [part.id for part in partitions]
    for part in partitions:
        where = f"partition '{part.id}'"
        if ids.count(part.id) > 1:
            raise _bad(f"{where} is there twice")
        if part.gpu not in there:
            raise _bad(f"{where} is on '{part.gpu}'; expected one of {', '.join(there)}")
        if not possible(part):
            raise _bad(
                f"{where}: expected every model once, batches from 1, rates and duty_ms from 0"
            )
    for name, gpu in there.items():
        shares = [part.share_pct for part in partitions if part.gpu == name]
        if shares and not gpu.legal(shares):
            legal = ", ".join(map(str, gpu.shares_pct))
            raise _bad(f"{name} ({gpu.kind}) cannot be cut into {shares} %; its shares are {legal}")


def _bad(detail: str) -> ServeError:
    return ServeError(Reason.BAD_INPUT, f"the plan cannot be carried out here: {detail}")
