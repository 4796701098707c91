"""Into which atoms the driver cuts each GPU: asked in a process that ends, before any plan."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Sequence
from contextlib import closing
from typing import Final

from interlace.device.cuda.driver.api import Driver
from interlace.device.cuda.green_contexts.atoms import Atoms, best_split

#: The atoms of GPUs by UUID, in order; empty if the driver cannot be asked.
AskAtoms = Callable[[Sequence[str]], Sequence[Atoms]]

#: Several GPUs whose driver was not loaded take some seconds each.
_LIMIT_S: Final = 60.0
_CODE: Final = (
    "import json, sys; sys.path[:] = json.loads(sys.argv[1]); "
    "from interlace.device.cuda.green_contexts.query import print_atoms; "
    "print_atoms(int(sys.argv[2]))"
)


def ask_atoms(uuids: Sequence[str]) -> Sequence[Atoms]:
    """Ask the driver, in a process of its own: this one never starts CUDA.

    Nothing is found if that process fails or takes a minute: whoever then uses the GPU fails as
    well, and can say why.
    """
    command = [sys.executable, "-c", _CODE, json.dumps(sys.path), str(len(uuids))]
    settings = [f"CUDA_VISIBLE_DEVICES={','.join(uuids)}", "CUDA_DEVICE_ORDER=PCI_BUS_ID"]
    try:
        done = subprocess.run(
            ["env", *settings, *command],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            timeout=_LIMIT_S,
            check=True,
        )
        return [Atoms(*numbers) for numbers in json.loads(done.stdout)]
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
