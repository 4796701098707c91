"""A GPU partitioned by green contexts: its SMs as atoms, their masks and shares, its settings."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import Final

from interlace.core.hardware import Gpu, Trait
from interlace.device.cuda.discovery import DiscoveredGpu
from interlace.device.cuda.driver.api import CudaError, Driver, SmSplit
from interlace.device.cuda.settings import (
    AHEAD_MS,
    SHARED_PROCESS_TRAITS,
    CudaSettings,
    model_memory_bytes,
    only_gpu,
)
from interlace.shm import children

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


@dataclass(frozen=True, slots=True)
class Atoms:
    """``count`` atoms of ``atom_sms`` SMs each, and a rest that is too small for an atom.

    Bit ``i`` of a mask is atom ``i``; bit ``count`` is the rest, which only the whole GPU has, so
    that partitions of one share have one number of SMs wherever they lie.
    """

    count: int
    atom_sms: int
    rest_sms: int = 0

    @classmethod
    def of(cls, split: SmSplit) -> Atoms:
        """The atoms that the driver made.

        Raises:
            ValueError: they differ in size, or there are no SMs at all.
        """
        sizes = {atom.sms for atom in split.atoms}
        rest_sms = split.rest.sms if split.rest else 0
        if len(sizes) > 1:
            raise ValueError(f"atoms of {sorted(sizes)} SMs: expected one size")
        if not sizes and not rest_sms:
            raise ValueError("a GPU without SMs")
        return cls(len(split.atoms), sizes.pop() if sizes else 0, rest_sms)

    @property
    def units(self) -> int:
        """All SMs."""
        return self.count * self.atom_sms + self.rest_sms

    @property
    def whole(self) -> int:
        """The mask of all SMs."""
        return (1 << self.count + (self.rest_sms > 0)) - 1

    @property
    def rest(self) -> int:
        """The mask of the rest; 0 if there is none."""
        return (1 << self.count) if self.rest_sms else 0

    @property
    def sizes(self) -> dict[int, int]:
        """Atoms of each legal share, ascending: percentages rounded down; 100 has the rest too."""
        sizes = range(1, self.count + 1)
        shares = {100 * size * self.atom_sms // self.units: size for size in sizes}
        shares[100] = self.count
        shares.pop(0, None)
        return shares

    @property
    def shares_pct(self) -> tuple[int, ...]:
        """Legal shares, ascending."""
        return tuple(self.sizes)

    def size(self, share_pct: int) -> int:
        """Atoms of a share.

        Raises:
            ValueError: no such share.
        """
        size = self.sizes.get(share_pct)
        if size is None:
            raise ValueError(f"a share of {share_pct} %: expected one of {list(self.shares_pct)}")
        return size

    def sms(self, mask: int) -> int:
        """SMs of a mask."""
        atoms = mask & ~(1 << self.count)
        return atoms.bit_count() * self.atom_sms + (self.rest_sms if mask >> self.count else 0)

    def numbers(self, mask: int) -> tuple[int, ...]:
        """The SMs of a mask, numbered through from atom to atom."""
        found: list[int] = []
        for one in indices(mask):
            first = one * self.atom_sms
            found.extend(range(first, first + self.atom_sms if one < self.count else self.units))
        return tuple(found)

    def holders(self, masks: Iterable[int]) -> tuple[int, ...]:
        """Of how many of the masks each atom is part; the rest comes last if there is one."""
        counts = [0] * self.whole.bit_length()
        for mask in masks:
            for index in indices(mask):
                counts[index] += 1
        return tuple(counts)


def span(first: int, count: int) -> int:
    """The mask of ``count`` atoms in a row."""
    return ((1 << count) - 1) << first


def indices(mask: int) -> Iterator[int]:
    """The atoms of a mask, ascending."""
    while mask:
        lowest = mask & -mask
        yield lowest.bit_length() - 1
        mask ^= lowest


#: The atoms of GPUs by UUID, in order; empty if the driver cannot be asked.
AskAtoms = Callable[[Sequence[str]], Sequence[Atoms]]

#: Several GPUs whose driver was not loaded take some seconds each.
_LIMIT_S: Final = 60.0


def ask_atoms(uuids: Sequence[str]) -> Sequence[Atoms]:
    """Ask the driver, in a process of its own: this one never starts CUDA.

    Nothing is found if that process fails or takes a minute: whoever then uses the GPU fails as
    well, and can say why.
    """
    order = {"CUDA_VISIBLE_DEVICES": ",".join(uuids), "CUDA_DEVICE_ORDER": "PCI_BUS_ID"}
    entry = f"{__name__}:print_atoms"
    try:
        asked = children.start(entry, len(uuids), environment=order, pipes=True)
        return [Atoms(*n) for n in json.loads(children.finish(asked, _LIMIT_S).written)]
    except (OSError, subprocess.SubprocessError, ValueError):
        return ()


def print_atoms(count: int) -> None:
    """In the process that is asked: the atoms of each GPU that it sees, as one line of JSON."""
    from interlace.device.cuda.driver.bound import BoundDriver

    found = []
    for ordinal in range(count):
        with closing(BoundDriver(ordinal)) as driver:
            found.append(_numbers(driver))
    print(json.dumps(found))


def common_atoms(found: Sequence[Atoms]) -> Atoms:
    """What every GPU of a fleet can be cut into: a plan for one must do for any other.

    Raises:
        ValueError: their atoms differ in size.
    """
    sizes = {one.atom_sms for one in found}
    if len(sizes) != 1:
        raise ValueError(f"GPUs of one kind with atoms of {sorted(sizes)} SMs")
    least = min(found, key=lambda one: one.count)
    return least


def _numbers(driver: Driver) -> tuple[int, int, int]:
    atoms = Atoms.of(best_split(driver))
    return atoms.count, atoms.atom_sms, atoms.rest_sms


LANES: Final = "interlace.device.cuda.green_contexts.lanes:make_lanes"
#: Green contexts came with CUDA 12.4; atoms of 8 SMs are those of compute capability 9.0.
DRIVER: Final = 12040
CAPABILITY: Final = (9, 0)


def lacking(found: DiscoveredGpu) -> str:
    """Why a GPU cannot be partitioned so; empty if it can."""
    if found.mig:
        return found.mig_refusal
    if found.capability < CAPABILITY:
        have = ".".join(map(str, found.capability))
        return f"GPU {found.number} has compute capability {have}; green contexts are used from 9.0"
    if found.driver < DRIVER:
        return (
            f"the driver speaks CUDA {found.driver // 1000}.{found.driver % 1000 // 10}; "
            f"green contexts need 12.4 or newer"
        )
    return ""


def green_gpu(found: DiscoveredGpu, gpu_id: str, atoms: Atoms | None = None) -> Gpu:
    """The accelerator that such a device is, with the atoms that the driver makes of it.

    Without, they are those of a GPU whose parts are of one size, which the driver alone knows.
    """
    atoms = atoms or Atoms(found.sms // ATOM_SMS, ATOM_SMS, found.sms % ATOM_SMS)
    return Gpu(
        gpu_id,
        found.kind,
        found.sms,
        model_memory_bytes(found.memory_bytes),
        atoms.shares_pct,
        SHARED_PROCESS_TRAITS | {Trait.SHARE_AT_LAUNCH},
        blocks=(atoms.count, atoms.atom_sms),
        ahead_ms=AHEAD_MS,
    )


def green_settings(found: DiscoveredGpu, gpu_id: str, atoms: Atoms | None = None) -> CudaSettings:
    """The settings of such a device."""
    return CudaSettings(
        green_gpu(found, gpu_id, atoms),
        found.uuid,
        LANES,
        environment=only_gpu(found.uuid),
        nvlinks=found.nvlinks,
    )
