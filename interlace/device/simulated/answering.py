"""A simulated accelerator behind a server: its batches take real time and are answered."""

from __future__ import annotations

from collections.abc import Callable

from interlace.core.hardware import Gpu
from interlace.core.messages import Failure, PartitionLost, Run, Work, WorkFinished
from interlace.core.model import Model
from interlace.core.profile import Profile
from interlace.core.tensor import Tensor
from interlace.device.base import Done
from interlace.device.simulated.answers import AnswerWriter
from interlace.device.simulated.device import SimulatedDevice
from interlace.device.simulated.physics import Physics
from interlace.device.simulated.running_batches import Timer

#: What a model takes on this kind of accelerator; raises what keeps it from being served.
FindProfile = Callable[[Model], Profile]


class AnsweringDevice:
    """``SimulatedDevice`` for registered models, whose requests get ``AnswerWriter``'s answers.

    They are written when a batch begins, so that its end waits for nothing.
    """

    def __init__(
        self, gpu: Gpu, timer: Timer, answers: AnswerWriter, find: FindProfile, physics: Physics
    ) -> None:
        self._models: dict[str, Model] = {}
        self._profiles: dict[str, Profile] = {}
        self._find = find
        self._answers = answers
        self._written: dict[int, tuple[tuple[Tensor, ...], ...] | None] = {}
        self.simulated = SimulatedDevice(gpu, timer, self._profiles, physics=physics)

    @property
    def gpu(self) -> Gpu:
        return self.simulated.gpu

    def register(self, model: Model) -> None:
        """Make a model known by its profile; raises as ``FindProfile``."""
        self._profiles[model.key] = self._find(model)
        self._models[model.key] = model

    def forget(self, key: str) -> None:
        self.simulated.forget(key)
        self._profiles.pop(key, None)
        self._models.pop(key, None)

    def do(self, work: Work, done: Done) -> None:
        if not isinstance(work, Run):
            self.simulated.do(work, done)
            return
        self.simulated.do(work, lambda finished: done(self._answered(work, finished)))
        model = self._models.get(work.batch.model)
        if model is not None:
            self._written[work.batch.id] = self._answers.write(work, model)

    def free(self, batch: int) -> None:
        self._answers.free(batch)

    def cancel_fetch(self, model: str) -> None:
        self.simulated.cancel_fetch(model)

    def on_event(self, lost: Callable[[PartitionLost], None]) -> None:
        self.simulated.on_event(lost)

    def close(self) -> None:
        self.simulated.close()

    def _answered(self, run: Run, finished: WorkFinished) -> WorkFinished:
        outputs = self._written.pop(run.batch.id, None)
        if finished.failure is not None:
            self._answers.free(run.batch.id)
            return finished
        if outputs is None:
            full = Failure("no room for its answers: earlier ones are not delivered yet")
            return WorkFinished(run, failure=full)
        return WorkFinished(run, outputs, timing=finished.timing)
