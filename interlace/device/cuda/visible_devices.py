"""Which of a machine's GPUs to use, named as in ``CUDA_VISIBLE_DEVICES``."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from interlace.device.cuda.discovery import DiscoveredGpu


def visible(found: Sequence[DiscoveredGpu], setting: str | None) -> tuple[DiscoveredGpu, ...]:
    """The GPUs that ``setting`` names, in its order; all of them if it is ``None``.

    Names are numbers in the order of bus addresses, beginnings of ``GPU-...`` ids, or ``MIG-...``
    ids of instances. What comes after the first name that fits no GPU does not count (CUDA C
    programming guide, environment variables).
    """
    if setting is None:
        return tuple(found)
    shown: dict[int, DiscoveredGpu] = {}
    for name in setting.split(","):
        one = next(_named(found, name.strip()), None)
        if one is None:
            break
        if (before := shown.get(one.number)) is not None:
            more = tuple(each for each in one.instances if each not in before.instances)
            one = before._replace(instances=before.instances + more)
        shown[one.number] = one
    return tuple(shown.values())


def _named(found: Sequence[DiscoveredGpu], name: str) -> Iterator[DiscoveredGpu]:
    for one in found:
        if (name.isdecimal() and int(name) == one.number) or (
            name.startswith("GPU-") and one.uuid.startswith(name)
        ):
            yield one
        elif name.startswith("MIG-") and one.mig:
            chosen = tuple(each for each in one.instances if each.uuid == name)
            if chosen:
                yield one._replace(instances=chosen)
