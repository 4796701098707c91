"""Lanes on green contexts: sets of SMs in one process, carved beforehand, changed by choosing."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from contextlib import ExitStack
from typing import Final

from interlace.device.cuda.driver.api import Atom, Driver, Green
from interlace.device.cuda.driver.errors import CudaError
from interlace.device.cuda.partitions.atoms import Atoms, indices
from interlace.device.cuda.partitions.ladder import Rung, choose, ladder
from interlace.device.cuda.partitions.lanes import Lane, Roster

#: SMs of an atom on sm_90: the smallest group that keeps thread block clusters whole.
ATOM_SMS: Final = 8


class GreenLanes:
    """Each lane is one stream of one green context; the lane of all SMs is a plain stream.

    The SMs are split once. Contexts are unions of atoms, so they may overlap, and the bookkeeping
    of who has which atom is ours: the driver reserves nothing.
    """

    def __init__(self, driver: Driver, atom_sms: int = ATOM_SMS) -> None:
        self._driver = driver
        split = driver.split(atom_sms)
        self.atoms = Atoms.of(split)
        self._resources: list[Atom] = [*split.atoms, *([split.rest] if split.rest else [])]
        self._roster = Roster()
        self._aside: Lane | None = None

    @property
    def lanes(self) -> tuple[Lane, ...]:
        return tuple(self._roster)

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
        self._roster.check_new(name)
        used = [lane for lane in self._roster if lane.name is not None]
        stays = [lane.mask for lane in used if lane.name not in leaving]
        leaves = [lane.mask for lane in used if lane.name in leaving]
        idle = {lane.mask: lane for lane in self._roster.idle()}
        mask = choose(self.atoms, share_pct, stays, leaves, idle)
        lane = idle.get(mask) or self._make(share_pct, mask)
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

    def _make(self, share_pct: int, mask: int) -> Lane:
        """A new lane; idle lanes that nothing was captured on make room if there is none."""
        while True:
            try:
                return self._create(share_pct, mask)
            except CudaError as error:
                spare = next((one for one in self._roster.idle() if one.pool is None), None)
                if error.sticky or spare is None:
                    raise
                self.retire(spare)

    def _create(self, share_pct: int, mask: int) -> Lane:
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
            detail = f"asked for {wanted} SMs, got {green.sms}"
            raise CudaError("cuGreenCtxCreate", "CUDA_ERROR_INVALID_RESOURCE_CONFIGURATION", detail)

    def _destroy(self, lanes: Collection[Lane]) -> None:
        with ExitStack() as steps:  # last in, first out; every step is tried
            for lane in lanes:
                if lane.green is not None:
                    steps.callback(self._driver.destroy_green, lane.green)
            for lane in lanes:
                steps.callback(self._driver.destroy_stream, lane.stream)
