"""Green contexts, each made once and kept: a partition on the same SMs needs no other."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from contextlib import ExitStack

from interlace.device.cuda.driver.api import Atom, Driver, GreenContext
from interlace.device.cuda.driver.errors import CudaError
from interlace.device.cuda.green_contexts.atoms import Atoms, indices


class GreenContexts:
    """Green contexts by the mask of their atoms. Several lanes may have one.

    How many a driver grants is not documented: one that no lane has makes room for a new one.
    """

    def __init__(self, driver: Driver, atoms: Atoms, resources: Collection[Atom]) -> None:
        self._driver = driver
        self._atoms = atoms
        self._resources = tuple(resources)
        self._made: dict[int, GreenContext] = {}
        self._used: set[int] = set()  # masks that a lane has had: libraries may have handles there

    @property
    def masks(self) -> Collection[int]:
        """Those that stand."""
        return self._made.keys()

    def prepare(self, masks: Iterable[int]) -> None:
        """Make contexts for masks, until one is refused.

        Raises:
            CudaError: the GPU failed.
        """
        try:
            for mask in masks:
                if mask not in self._made:
                    self._made[mask] = self._make(mask)
        except CudaError as error:
            if error.sticky:
                raise

    def of(self, mask: int, held: Collection[int]) -> GreenContext:
        """The context of a mask. One that is not ``held`` makes room for it, best an unused one.

        Raises:
            CudaError: the driver refused.
        """
        if mask not in self._made:
            try:
                self._made[mask] = self._make(mask)
            except CudaError as error:
                idle = [one for one in self._made if one not in held]
                if error.sticky or not idle:
                    raise
                gone = min(idle, key=self._used.__contains__)
                self._driver.destroy_green(self._made.pop(gone))
                self._made[mask] = self._make(mask)
        self._used.add(mask)
        return self._made[mask]

    def close(self) -> None:
        """Destroy them; they have no streams any more.

        Raises:
            CudaError: the driver refused at least once; everything was tried.
        """
        made, self._made = self._made, {}
        with ExitStack() as steps:
            for green in made.values():
                steps.callback(self._driver.destroy_green, green)

    def _make(self, mask: int) -> GreenContext:
        green = self._driver.green([self._resources[one] for one in indices(mask)])
        wanted = self._atoms.sms(mask)
        if green.sms < wanted:
            self._driver.destroy_green(green)
            raise CudaError(
                "cuGreenCtxCreate",
                "CUDA_ERROR_INVALID_RESOURCE_CONFIGURATION",
                f"asked for {wanted} SMs, got {green.sms}",
            )
        return green
