"""What happens around an execution: host work, inputs copied in, outputs copied out."""

from __future__ import annotations

from collections.abc import Callable

from interlace.core.messages import CopyInputs, Run
from interlace.device.simulated.host_link import FifoResource
from interlace.device.simulated.physics import Physics
from interlace.device.simulated.running_batches import Timer

Callback = Callable[[], None]


class CopyEngines:
    """The host thread and the two copy engines of one accelerator.

    A batch's inputs are copied before it begins, unless they lie in the pool already: copies into
    the pool go on beside executions, which is what the pool is for (E2bird Figure 6). A partition's
    next batch waits for the copy out of the one before: copy, compute, copy in series, as
    TF-Serving does (E2bird Figure 3), and as a stream does.
    """

    def __init__(self, timer: Timer, physics: Physics) -> None:
        self._timer = timer
        self._physics = physics
        self._host, self._inward, self._outward = FifoResource(), FifoResource(), FifoResource()
        #: nothing goes before or after an execution
        self.plain = not any((physics.host.launch_ms, physics.host.sync_ms, physics.link))

    def launch(self, then: Callback) -> None:
        """The host launches a batch; ``then`` at once if that takes no time, as in all of these."""
        self._use(self._host, self._physics.host.launch_ms, then)

    def bring(self, run: Run, then: Callback) -> None:
        """Copy a batch's inputs in."""
        self._use(self._inward, self._inputs_ms(run), then)

    def take_out(self, run: Run, then: Callback) -> None:
        """Copy a batch's outputs out."""
        self._use(self._outward, self._outputs_ms(run), then)

    def tell(self, then: Callback) -> None:
        """The host learns that a batch has ended."""
        self._use(self._host, self._physics.host.sync_ms, then)

    def staged_ms(self, stage: CopyInputs) -> float:
        """When a request's inputs lie in the pool."""
        transfer = self._physics.transfers.get(stage.request.model)
        if transfer is None or self._physics.link is None:
            return self._timer.now_ms()
        copy_ms = self._physics.link.copied_ms(transfer.input_bytes * stage.request.rows)
        return self._inward.take(self._timer.now_ms(), copy_ms)

    def _inputs_ms(self, run: Run) -> float:
        link, batch = self._physics.link, run.batch
        transfer = self._physics.transfers.get(batch.model)
        if link is None or transfer is None or batch.slot is not None:
            return 0.0
        return link.gathered_ms(transfer.input_bytes * batch.run_rows, len(batch.requests))

    def _outputs_ms(self, run: Run) -> float:
        link, transfer = self._physics.link, self._physics.transfers.get(run.batch.model)
        if link is None or transfer is None:
            return 0.0
        return link.copied_ms(transfer.output_bytes * run.batch.run_rows)

    def _use(self, station: FifoResource, for_ms: float, then: Callback) -> None:
        """Take a turn at a station now, not ahead of time: others may come first till then."""
        if for_ms <= 0:
            then()
        else:
            self._timer.call_at(station.take(self._timer.now_ms(), for_ms), then)
