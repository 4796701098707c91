"""Whether a node can be planned for, by what it says that it is."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from math import inf
from typing import Final

import msgspec

from interlace.core.node import NodeDescription
from interlace.core.version import __version__

#: Clocks that differ by less are alike: logs and metrics of machines can be compared.
_ALIKE_S: Final = 1.0


def read_description(body: bytes) -> tuple[NodeDescription, float | None]:
    """What a node says that it is, and its clock in Unix seconds; ``None`` where it tells none.

    JSON has no infinity: a link without bound comes as null.

    Raises:
        MsgspecError: it is no such thing.
    """
    try:
        found = msgspec.json.decode(body)
        clock_s = None
        if isinstance(found, dict):
            clock_s = msgspec.convert(found.pop("clock_s", None), float | None)
            for gpu in found.get("gpus", ()):
                links = gpu.get("links", {})
                links.update({key: inf for key, value in links.items() if value is None})
        return msgspec.convert(found, NodeDescription), clock_s
    except (AttributeError, TypeError, RecursionError, ValueError) as error:
        raise msgspec.ValidationError(f"not a description of a node: {error}") from None


def unfit(
    found: NodeDescription, others: Mapping[str, NodeDescription], computing: Collection[str]
) -> str:
    """Why a node cannot be planned for beside others, and what to do; "" if it can.

    ``computing`` are those of the fleet that compute, lost ones too: nobody wants made-up answers
    in their stead.
    """
    twin = next((name for name, one in others.items() if one.began == found.began), None)
    if twin is not None:
        return f"is the same server as {twin}: name it once"
    ids = [gpu.id for gpu in found.gpus]
    if not ids or len(set(ids)) < len(ids):
        return "has no accelerator, or two of one name: start it anew, and see what it logs"
    if not found.assigned:
        return "plans for itself: start it with --assigned"
    if found.version != __version__:
        return f"runs version {found.version}, this controller {__version__}: use one"
    if found.emulated and computing:
        return (
            f"emulates its {found.gpus[0].kind}, and its answers would be made up, while "
            f"{min(computing)} computes: start it with --device cuda or cpu, or remove it"
        )
    return ""


def clock_remark(clock_s: float | None, asked_s: float, answered_s: float) -> str:
    """What is wrong with a node's clock, read between two times of ours; "" if nothing is.

    Nothing is decided by comparing clocks, but logs and metrics of machines are.
    """
    if clock_s is None or asked_s - _ALIKE_S <= clock_s <= answered_s + _ALIKE_S:
        return ""
    ahead_s = clock_s - (asked_s + answered_s) / 2.0
    which = "ahead of" if ahead_s > 0.0 else "behind"
    return (
        f"its clock is {abs(ahead_s):.0f} s {which} this controller's, so their logs and metrics "
        "do not fit together: set both machines' clocks (NTP)"
    )
