"""The lane of a process that is itself a partition: a client of MPS, or a MIG instance."""

from __future__ import annotations

from interlace.device.cuda.driver.api import Driver
from interlace.device.cuda.stream_lanes import StreamLanes


class WholeLanes(StreamLanes):
    """One lane on all SMs that the process sees: MPS took away the others before it began."""

    def __init__(self, driver: Driver) -> None:
        super().__init__(driver, most=1)
