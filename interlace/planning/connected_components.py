"""Parts of a plan that have nothing to do with each other: no model is in two of them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

from interlace.core.plan import Partition, Plan


def connected_components(
    plan: Plan, *, by_gpu: bool = True, together: Iterable[Sequence[str]] = ()
) -> list[Plan]:
    """The plan in parts that share no model and, ``by_gpu``, no accelerator, in the plan's order.

    Models that are named ``together`` are in one part. Partitions without a model are left out.
    """
    groups = _Groups()
    for models in together:
        for model in models:
            groups.join(f"m:{models[0]}", f"m:{model}")
    for part in plan.partitions:
        for name in _names(part, by_gpu):
            groups.join(f"p:{part.id}", name)
    found: dict[str, list[Partition]] = {}
    for part in plan.partitions:
        if part.slots:
            found.setdefault(groups.root(f"p:{part.id}"), []).append(part)
    return [replace(plan, partitions=tuple(parts)) for parts in found.values()]


def _names(part: Partition, by_gpu: bool) -> Iterator[str]:
    if by_gpu:
        yield f"g:{part.gpu}"
    for slot in part.slots:
        yield f"m:{slot.model}"


class _Groups:
    """Names that belong together."""

    def __init__(self) -> None:
        self._above: dict[str, str] = {}

    def root(self, name: str) -> str:
        above = self._above.setdefault(name, name)
        while above != name:
            self._above[name] = self._above[above]
            name, above = above, self._above[above]
        return name

    def join(self, one: str, other: str) -> None:
        self._above[self.root(other)] = self.root(one)
