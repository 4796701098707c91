"""Where accelerators come from: a provider carries out ``Scale`` and ``Dismiss``."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Protocol

from interlace.core.hardware import Gpu
from interlace.device.base import Device

_log = logging.getLogger(__name__)


class GpuHost(Protocol):
    """The runtime as a provider sees it: where accelerators join and leave."""

    @property
    def gpus(self) -> Sequence[Gpu]:
        """The accelerators that are there."""

    def join(self, device: Device) -> None:
        """An accelerator joined."""

    def leave(self, gpu: str) -> None:
        """An accelerator is gone; what it still held fails."""


class GpuProvider(Protocol):
    """Adds and removes accelerators; it calls the host later, on the runtime's thread."""

    def scale(self, wanted: Mapping[str, int], host: GpuHost) -> None:
        """From now on this many accelerators of each kind are wanted in total."""

    def dismiss(self, gpu: str, host: GpuHost) -> None:
        """This accelerator is empty and may be taken away."""


class FixedGpuProvider:
    """The accelerators there are stay; that more are wanted is logged once."""

    def __init__(self) -> None:
        self._logged = False

    def scale(self, wanted: Mapping[str, int], host: GpuHost) -> None:
        if not self._logged:
            self._logged = True
            what = ", ".join(f"{count} {kind}" for kind, count in sorted(wanted.items()))
            _log.warning("overloaded: %s would meet the demand", what)

    def dismiss(self, gpu: str, host: GpuHost) -> None:
        """Never asked for where the fleet stays."""
