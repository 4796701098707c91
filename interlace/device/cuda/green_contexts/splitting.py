"""How a GPU is cut into atoms: the way that leaves the fewest SMs over."""

from __future__ import annotations

from typing import Final

from interlace.device.cuda.driver.api import Driver, SmSplit
from interlace.device.cuda.driver.errors import CudaError

#: SMs of an atom on sm_90: the smallest group that keeps thread block clusters whole.
ATOM_SMS: Final = 8
#: (SMs of an atom, whether clusters stay whole), what is preferred among equals first. The parts
#: of a GPU (GPCs) may differ in size: then atoms that keep to them are fewer.
_WAYS: Final = ((ATOM_SMS, True), (ATOM_SMS, False), (2 * ATOM_SMS, True))


def best_split(driver: Driver) -> SmSplit:
    """The split that has most SMs in atoms.

    Raises:
        CudaError: the driver makes none, in words for the first way; or the GPU failed.
    """
    found: list[SmSplit] = []
    refused: list[CudaError] = []
    for atom_sms, clusters in _WAYS:
        try:
            found.append(driver.split(atom_sms, clusters))
        except CudaError as error:
            if error.sticky:
                raise
            refused.append(error)
    if not found:
        raise refused[0]
    return max(found, key=lambda split: sum(atom.sms for atom in split.atoms))
