"""Where accelerators come from: a provider carries out ``Scale`` and ``Dismiss``."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Protocol

from interlace.core.hardware import Gpu
from interlace.device.base import Device

_log = logging.getLogger(__name__)


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
    """The accelerators there are stay; that more are wanted is logged once."""

    def __init__(self) -> None:
        self._logged = False

    def scale(self, wanted: Mapping[str, int], stage: GpuHost) -> None:
        if not self._logged:
            self._logged = True
            what = ", ".join(f"{count} of {kind}" for kind, count in sorted(wanted.items()))
            _log.warning("the demand is more than is served here: %s would do better", what)

    def dismiss(self, gpu: str, stage: GpuHost) -> None:
        """Never asked for where the fleet stays."""
