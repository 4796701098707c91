"""Where accelerators come from: a provider carries out ``Scale`` and ``Dismiss``."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

from interlace.core.hardware import Gpu
from interlace.device.base import Device


class GpuHost(Protocol):
    """Where accelerators come and go: the runtime, as a provider sees it."""

    @property
    def gpus(self) -> Sequence[Gpu]:
        """Those that are there."""
        ...

    def join(self, device: Device) -> None:
        """An accelerator is there."""
        ...

    def leave(self, gpu: str) -> None:
        """An accelerator is gone; what it still held fails."""
        ...


class GpuProvider(Protocol):
    """Brings and takes accelerators, later, on the runtime's thread."""

    def scale(self, wanted: Mapping[str, int], stage: GpuHost) -> None:
        """So many accelerators of each kind are wanted in all, from now on."""
        ...

    def dismiss(self, gpu: str, stage: GpuHost) -> None:
        """That one holds nothing and may be taken."""
        ...


class FixedGpuProvider:
    """The accelerators there are stay; that more are wanted is said once."""

    def __init__(self, say: Callable[[str], None] = lambda text: None) -> None:
        self._say = say
        self._said = False

    def scale(self, wanted: Mapping[str, int], stage: GpuHost) -> None:
        if not self._said:
            self._said = True
            what = ", ".join(f"{count} of {kind}" for kind, count in sorted(wanted.items()))
            self._say(f"the demand is more than is served here: {what} would do better")

    def dismiss(self, gpu: str, stage: GpuHost) -> None:
        """Never asked for where the fleet stays."""
