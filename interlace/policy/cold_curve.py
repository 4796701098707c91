"""A model's cold start by how much of it is kept: which weights to keep first, and what that saves.

Where copies hide behind execution those are kept first that would be copied first; where a copy is
made by the cores that execute, those that save the most a byte. The curve falls in steps, *parts*,
and each has its worth: milliseconds a byte, those of the request and those of the link together.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Final, NamedTuple, Protocol

from interlace.core.loading import DISK_LINK, HostLinks, HostTier, LoadPlan, LoadStep, WeightPath
from interlace.core.profile import LayerProfile
from interlace.perf.cold_start import on_disk, planned, reads_too_long

#: Points of a curve at most, beside its ends.
_POINTS: Final = 24
#: What a millisecond of the link costs the loads behind it. In an M/D/1 queue another load makes
#: the others wait for rho (2 - rho) / 2 (1 - rho)^2 of its time: this much at rho = 2/3.
_LINK_WEIGHT: Final = 4.0
#: Plans that are remembered: those along the curve, and some of what else a device may hold.
_REMEMBERED: Final = 256


class ColdStart(Protocol):
    """How is a model loaded when the weights of its layers ``kept`` are resident?"""

    def __call__(
        self, layers: Sequence[LayerProfile], links: HostLinks, kept: frozenset[int] = frozenset()
    ) -> LoadPlan: ...


class ColdPoint(NamedTuple):
    """With the weights of so many bytes there, a cold start copies so many, and ends then.

    ``copy_ms`` is how long it has the link, or all links together.
    """

    kept_bytes: int
    copied_bytes: int
    copy_ms: float
    end_ms: float

    @property
    def price_ms(self) -> float:
        """What a request costs itself, and those that wait for the link."""
        return self.end_ms + _LINK_WEIGHT * self.copy_ms


class CurvePart(NamedTuple):
    """A step along a curve: these layers, if they are kept too, save so many ms a byte.

    Worths along a curve never rise: where they would, that of several steps together is theirs.
    """

    layers: tuple[int, ...]
    nbytes: int
    worth_ms: float


class ColdCurve:
    """How one model, or all that are like it, gets in over some links by one kind of plan.

    Plans are made when they are asked for, and remembered: the way of a model that was partly
    evicted is looked up, not searched. ``points`` go from nothing kept to all, each cheaper than
    the one before, and ``parts`` lie between them.

    A model is warm when all is there that a cold start copies, and all that it only reads from the
    host because it waits for copies meanwhile: later runs would pay for that.

    All of this is of weights in the host's memory. Where they are on its disk only, another plan
    brings them: ``plan_from_disk``, by what is known of the ``host``'s disk or the layers say.
    """

    def __init__(
        self,
        cold_start: ColdStart,
        layers: Sequence[LayerProfile],
        links: HostLinks,
        host: HostTier | None = None,
    ) -> None:
        self.layers = tuple(layers)
        self.links = links
        self.host = host
        self.on_disk = on_disk(self.layers, links.takes_cores, host)
        self._from_disk: dict[frozenset[int], LoadPlan] = {}
        self._cold_start = cold_start
        self._cold = cold_start(self.layers, links)
        self._lasting = self._cold.brought + tuple(
            index
            for index, layer in enumerate(self.layers)
            if layer.weights_bytes and reads_too_long(layer)
        )
        self._plans: dict[frozenset[int], LoadPlan] = {}
        self._missing: dict[frozenset[int], tuple[CurvePart, LoadPlan] | None] = {}
        self._leaving: dict[frozenset[int], tuple[CurvePart, ...]] = {}
        self.points, steps = self._curve()
        self.parts = tuple(
            CurvePart(step, self.nbytes(step), worth_ms)
            for step, worth_ms in zip(steps, worths_ms(self.points), strict=True)
        )

    def plan(self, held: frozenset[int] = frozenset()) -> LoadPlan:
        """What brings the rest, if the weights of these layers are there."""
        found = self._plans.get(held)
        if found is None:
            if len(self._plans) >= _REMEMBERED:
                self._plans.clear()
            found = self._plans[held] = self._planned(held)
        return found

    def plan_from_disk(self, held: frozenset[int], room_bytes: int) -> LoadPlan:
        """The same where the host has the weights on its disk only; it brings at most so much.

        What would bring more is as the plan for the host's memory, and ends when the disk has read.
        """
        if not self.on_disk:
            return self.plan(held)
        layers = [
            layer if index in held else self.on_disk[index]
            for index, layer in enumerate(self.layers)
        ]
        found = self._from_disk.get(held)
        if found is None:
            if len(self._from_disk) >= _REMEMBERED:
                self._from_disk.clear()
            found = self._from_disk[held] = self._cold_start(layers, DISK_LINK, held)
        if self.nbytes(found.brought) <= room_bytes:
            return found
        found = self.plan(held)
        steps = [replace(step, link=0) for step in found.steps]
        return planned(layers, steps, DISK_LINK, found.overlapped, held)

    def _planned(self, held: frozenset[int]) -> LoadPlan:
        if held.issuperset(self._lasting):
            return planned(self.layers, self._cold.steps, self.links, kept=held)
        return self._cold_start(self.layers, self.links, held)

    def copied(self, held: frozenset[int] = frozenset()) -> tuple[int, ...]:
        """The layers that are then brought; none where the model is warm."""
        return self.plan(held).brought

    def nbytes(self, layers: Sequence[int]) -> int:
        """The weights of these layers."""
        return sum(self.layers[index].weights_bytes for index in layers)

    def missing(self, held: frozenset[int]) -> tuple[CurvePart, LoadPlan] | None:
        """What is worth most of what is not there, and what brings that and nothing else.

        Of a model that runs by reading from the host what it should not, all of that; else the
        first part that is not all there.
        """
        if held not in self._missing:
            if len(self._missing) >= _REMEMBERED:
                self._missing.clear()
            self._missing[held] = self._first_missing(held)
        return self._missing[held]

    def _first_missing(self, held: frozenset[int]) -> tuple[CurvePart, LoadPlan] | None:
        part = self._read_meanwhile(held) or next(
            (one for one in self.parts if not held.issuperset(one.layers)), None
        )
        if part is None:
            return None
        brought = tuple(index for index in part.layers if index not in held)
        steps = [
            LoadStep(layer.name, _alone(index in brought, layer.weights_bytes))
            for index, layer in enumerate(self.layers)
        ]
        left = CurvePart(brought, self.nbytes(brought), part.worth_ms)
        return left, planned(self.layers, steps, self.links, kept=held)

    def _read_meanwhile(self, held: frozenset[int]) -> CurvePart | None:
        if not held.issuperset(self._cold.brought):
            return None
        read = tuple(index for index in self._lasting if index not in held)
        if not read:
            return None
        layers = [self.layers[index] for index in read]
        saved_ms = sum(one.run_host_ms - one.run_ms for one in layers)
        saved_ms += _LINK_WEIGHT * sum(one.copy_ms for one in layers)
        return CurvePart(read, self.nbytes(read), saved_ms / self.nbytes(read))

    def leaving(self, held: frozenset[int]) -> tuple[CurvePart, ...]:
        """What of it is there by parts, in the order in which they go: those worth nothing first.

        The last part of all is the first to be kept.
        """
        found = self._leaving.get(held)
        if found is None:
            if len(self._leaving) >= _REMEMBERED:
                self._leaving.clear()
            found = self._leaving[held] = tuple(self._parts_of(held))
        return found

    def _parts_of(self, held: frozenset[int]) -> Iterator[CurvePart]:
        known = {index for part in self.parts for index in part.layers}
        for part in (CurvePart(tuple(sorted(held - known)), 0, 0.0), *reversed(self.parts)):
            layers = tuple(index for index in part.layers if index in held)
            if layers:
                yield CurvePart(layers, self.nbytes(layers), part.worth_ms)

    def _curve(self) -> tuple[tuple[ColdPoint, ...], list[tuple[int, ...]]]:
        """Points, and the layers of the steps between them."""
        order = self._keeping_order()
        points = [self._point(frozenset())]
        total_bytes = self.nbytes(order)
        steps: list[tuple[int, ...]] = []
        kept: list[int] = []
        since = kept_bytes = 0
        for index in order:
            kept.append(index)
            kept_bytes += self.layers[index].weights_bytes
            part_bytes = kept_bytes - points[-1].kept_bytes
            if part_bytes < total_bytes / _POINTS and index != order[-1]:
                continue
            point = self._point(frozenset(kept))
            if point.price_ms < points[-1].price_ms:
                points.append(point)
                steps.append(tuple(kept[since:]))
                since = len(kept)
        held = {index for step in steps for index in step}
        rest = [
            index
            for index, layer in enumerate(self.layers)
            if layer.weights_bytes and index not in held
        ]
        whole = self._whole()
        if rest and whole.price_ms < points[-1].price_ms:
            return (*points, whole), [*steps, tuple(rest)]
        return tuple(points), steps

    def _keeping_order(self) -> list[int]:
        if not self.links.takes_cores:
            return sorted({*self._lasting})
        worths = {}
        for index, layer in enumerate(self.layers):
            if layer.weights_bytes:
                cold_ms = min(layer.copy_ms + layer.run_ms, layer.run_host_ms)
                worths[index] = (cold_ms - layer.run_ms) / layer.weights_bytes
        return sorted((index for index in worths if worths[index] > 0), key=lambda i: -worths[i])

    def _point(self, kept: frozenset[int]) -> ColdPoint:
        plan = self.plan(kept)
        copy_ms = sum(self.layers[index].copy_ms for index in plan.brought)
        kept_bytes = self.nbytes(sorted(kept))
        return ColdPoint(kept_bytes, self.nbytes(plan.brought), copy_ms, plan.end_ms)

    def _whole(self) -> ColdPoint:
        every = range(len(self.layers))
        return ColdPoint(self.nbytes(every), 0, 0.0, sum(layer.run_ms for layer in self.layers))


def _alone(brought: bool, nbytes: int) -> WeightPath:
    if brought:
        return WeightPath.COPY
    return WeightPath.HOST if nbytes else WeightPath.KEEP


def hull(points: Sequence[ColdPoint]) -> Iterator[tuple[int, int]]:
    """Edges of the lower convex hull, as places in the curve."""
    corners: list[int] = []
    for place, point in enumerate(points):
        while len(corners) > 1 and _above(points[corners[-2]], points[corners[-1]], point):
            corners.pop()
        corners.append(place)
    return pairwise(corners)


def worths_ms(points: Sequence[ColdPoint]) -> list[float]:
    """Of each step along a curve, ms a byte of the hull's edge that it is under."""
    found: list[float] = []
    for first, last in hull(points):
        begin, end = points[first], points[last]
        worth_ms = (begin.price_ms - end.price_ms) / (end.kept_bytes - begin.kept_bytes)
        found += [worth_ms] * (last - first)
    return found


def _above(first: ColdPoint, middle: ColdPoint, last: ColdPoint) -> bool:
    """Whether the middle point is not below the line between the others."""
    width, part = last.kept_bytes - first.kept_bytes, middle.kept_bytes - first.kept_bytes
    fall = first.price_ms - last.price_ms
    return (first.price_ms - middle.price_ms) * width <= fall * part
