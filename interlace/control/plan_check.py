"""Whether an assignment can be carried out on this node."""

from __future__ import annotations

from interlace.core.errors import Reason, ServeError
from interlace.core.hardware import Fleet
from interlace.core.node import Assignment
from interlace.core.plan import possible


def check_plan(assignment: Assignment, fleet: Fleet, where: str) -> None:
    """Refuse partitions that no accelerator of the node ``where`` can have.

    Raises:
        ServeError: BAD_INPUT; which partition, what is wrong, what is expected.
    """
    plan, there = assignment.plan, {gpu.id: gpu for gpu in fleet.gpus}
    ids = [part.id for part in plan.partitions]
    for part in plan.partitions:
        what = f"{where}: partition '{part.id}' of the assignment"
        if ids.count(part.id) > 1:
            raise _bad(f"{what} is there twice")
        if part.gpu not in there:
            raise _bad(f"{what} is on '{part.gpu}'; expected one of {', '.join(there)}")
        if not possible(part):
            expected = "expected every model once, batches from 1, rates and duty_ms from 0"
            raise _bad(f"{what}: {expected}")
        for slot in part.slots:
            if slot.model not in assignment.models:
                raise _bad(f"{what} has '{slot.model}', which is not among its models")
    for name, gpu in there.items():
        shares = [part.share_pct for part in plan.partitions if part.gpu == name]
        whole = all(gpu.legal([share]) for share in shares)
        if not (whole and (plan.overlapping or gpu.legal(shares))):
            legal = ", ".join(map(str, gpu.shares_pct))
            raise _bad(
                f"{where}: {name} ({gpu.kind}) cannot be cut into {shares} %; it has {legal} %"
            )


def _bad(detail: str) -> ServeError:
    return ServeError(Reason.BAD_INPUT, detail)
