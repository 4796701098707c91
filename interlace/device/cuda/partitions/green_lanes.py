"""Lanes on green contexts: sets of SMs in one process, carved beforehand, changed by choosing."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from contextlib import ExitStack
from typing import Final

from interlace.device.cuda.driver.api import Atom, Driver, Green
from interlace.device.cuda.driver.errors import CudaError
from interlace.device.cuda.partitions.atoms import Atoms, indices
from interlace.device.cuda.partitions.ladder import Crowd, Rung, choose, ladder, reuse
from interlace.device.cuda.partitions.lanes import Lane, Roster
from interlace.device.cuda.partitions.splitting import best_split

#: Three ladders of the largest GPU. Lanes past the first ladder come from plans, one by one.
_LANES_MAX: Final = 96


class GreenLanes:
    """Each lane is one stream of one green context; the lane of all SMs is a plain stream.

    The SMs are split once. Contexts are unions of atoms, so they may overlap, and the bookkeeping
    of who has which atom is ours: the driver reserves nothing.
    """

    def __init__(self, driver: Driver, lanes_max: int = _LANES_MAX) -> None:
        self._driver = driver
        self._lanes_max = lanes_max
        split = best_split(driver)
        self.atoms = Atoms.of(split)
        self._resources: list[Atom] = [*split.atoms, *([split.rest] if split.rest else [])]
        self._roster = Roster()
        self._aside: Lane | None = None

    @property
    def lanes(self) -> tuple[Lane, ...]:
        return tuple(self._roster)

    @property
    def blocks(self) -> tuple[int, int]:
        return self.atoms.count, self.atoms.atom_sms

    def prepare(self, rungs: Iterable[Rung] | None = None) -> int:
        """Make idle lanes for rungs (the whole ladder by default), as many as the driver grants.

        How many contexts fit is not documented, so a refusal only ends it; ``carve`` makes what is
        missing. Returns how many lanes there are.

        Raises:
            CudaError: the GPU failed.
        """
        standing = {lane.mask for lane in self._roster}
        try:
            for rung in ladder(self.atoms) if rungs is None else rungs:
                if rung.mask not in standing:
                    self._create(rung.share_pct, rung.mask)
        except CudaError as error:
            if error.sticky:
                raise
        return len(self.lanes)

    def aside(self) -> Lane:
        """On the SMs that no share has if the driver grants them, else on a plain stream."""
        if self._aside is None:
            try:
                self._aside = self._lane(0, 0, self.atoms.rest)
            except CudaError as error:
                if error.sticky or not self.atoms.rest:
                    raise
                self._aside = self._lane(0, 0, 0)
        return self._aside

    def carve(self, name: str, share_pct: int, leaving: Collection[str] = ()) -> Lane:
        """A lane on SMs that nobody else has, as far as there are enough.

        If no context can be made any more, a lane that is idle already is used, overlap or not:
        ``units`` say which SMs it has.
        """
        self._roster.check_new(name)
        mask = choose(self.atoms, share_pct, self._crowd(leaving))
        lane = self._idle(mask) or self._make(share_pct, mask, leaving)
        lane.name = name
        return lane

    def release(self, name: str) -> None:
        self._roster.release(name)

    def retire(self, lane: Lane) -> None:
        self._roster.remove(lane)
        self._destroy([lane])

    def close(self) -> None:
        aside, self._aside = self._aside, None
        self._destroy([*self._roster.clear(), *([aside] if aside else [])])

    def _crowd(self, leaving: Collection[str]) -> Crowd:
        used = [lane for lane in self._roster if lane.name is not None]
        return Crowd(
            [lane.mask for lane in used if lane.name not in leaving],
            [lane.mask for lane in used if lane.name in leaving],
            {lane.mask for lane in self._roster.idle()},
        )

    def _idle(self, mask: int | None) -> Lane | None:
        return next((lane for lane in self._roster.idle() if lane.mask == mask), None)

    def _make(self, share_pct: int, mask: int, leaving: Collection[str]) -> Lane:
        """A new lane, or the best that is idle if there can be no new one."""
        try:
            return self._grow(share_pct, mask)
        except CudaError as error:
            lane = self._idle(reuse(self.atoms, share_pct, self._crowd(leaving)))
            if error.sticky or lane is None:
                raise
            return lane

    def _grow(self, share_pct: int, mask: int) -> Lane:
        """A new lane; the newest idle one makes room for it if nothing was captured there."""
        try:
            return self._create(share_pct, mask)
        except CudaError as error:
            spare = [lane for lane in self._roster.idle() if lane.pool is None]
            if error.sticky or not spare:
                raise
        self.retire(spare[-1])
        return self._create(share_pct, mask)

    def _create(self, share_pct: int, mask: int) -> Lane:
        if len(self.lanes) >= self._lanes_max:
            raise _refused(f"there are {self._lanes_max} lanes already")
        return self._roster.add(self._lane(self._roster.index(), share_pct, mask))

    def _lane(self, index: int, share_pct: int, mask: int) -> Lane:
        if mask in (0, self.atoms.whole):
            mask = self.atoms.whole
            units = self.atoms.numbers(mask)
            return Lane(index, share_pct, len(units), self._driver.stream(), mask, units=units)
        with ExitStack() as undo:
            green = self._driver.green([self._resources[one] for one in indices(mask)])
            undo.callback(self._driver.destroy_green, green)
            self._check(green, mask)
            stream = self._driver.stream(green)
            undo.pop_all()
        units = self.atoms.numbers(mask)
        return Lane(index, share_pct, green.sms, stream, mask, green=green, units=units)

    def _check(self, green: Green, mask: int) -> None:
        wanted = self.atoms.sms(mask)
        if green.sms < wanted:
            raise _refused(f"asked for {wanted} SMs, got {green.sms}")

    def _destroy(self, lanes: Collection[Lane]) -> None:
        with ExitStack() as steps:  # last in, first out; every step is tried
            for lane in lanes:
                if lane.green is not None:
                    steps.callback(self._driver.destroy_green, lane.green)
            for lane in lanes:
                steps.callback(self._driver.destroy_stream, lane.stream)


def _refused(detail: str) -> CudaError:
    return CudaError("cuGreenCtxCreate", "CUDA_ERROR_INVALID_RESOURCE_CONFIGURATION", detail)
