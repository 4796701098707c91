"""A model loaded in a worker: opened, tried at its batch sizes, weighed, and let go of."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import dataclass

from interlace.core.model import Model
from interlace.core.tensor import Signature
from interlace.device.process.error_text import MemoryLimitError
from interlace.device.process.wire import LoadModel
from interlace.formats.arrays import sample_inputs
from interlace.formats.machine import anonymous_bytes, release_free_memory
from interlace.formats.python_backend.runner import PythonRunner
from interlace.formats.runner import WARM_RUNS, CallModels, ModelRunner, TakesTurns

OpenModel = Callable[[Model, int, str | None, CallModels | None], ModelRunner]


@dataclass(slots=True)
class ResidentModel:
    """``signature`` is what requests are served by; ``resident_bytes`` what the model holds.

    ``answered`` tells whether it has run on any values, a client's or the sample's; ``None`` if
    none were tried. ``takes_requests`` is the runner, if it takes requests one by one.
    """

    model: Model
    runner: ModelRunner
    signature: Signature
    resident_bytes: int
    answered: bool | None = None
    takes_requests: PythonRunner | None = None

    @classmethod
    def taking_turns(cls, load: LoadModel, weights_dir: str, first: TakesTurns) -> ResidentModel:
        """A model whose architecture is open: it holds nothing here until its weights come.

        Raises:
            OSError, ValueError: its weights are not as those of the ``first``.
        """
        model = load.model
        return cls(model, first.of_another(model, weights_dir), model.signature, 0)

    @classmethod
    def load(
        cls,
        load: LoadModel,
        threads: int,
        weights_dir: str | None,
        open_model: OpenModel,
        call: CallModels | None = None,
    ) -> ResidentModel:
        """Open a model and run it at the batch sizes asked for, so that no request pays for it.

        Its code may load other models by ``call`` while it is opened.

        Raises:
            MemoryLimitError: it holds more than ``terms.memory_limit_bytes``.
        """
        model = load.model
        before = anonymous_bytes()
        runner = open_model(model, threads, weights_dir, call)
        stated = model.signature.inputs and model.signature.outputs
        signature = model.signature if stated else runner.signature
        answered = None
        for rows in sorted(load.batches, reverse=True):
            answered = _runs(model, runner, signature, rows, WARM_RUNS) or answered
        grown = max(0, anonymous_bytes() - before)
        if load.cold and runner.cold is None:
            runner.close()
            raise ValueError(*runner.warnings or ("its weights cannot come and go",))
        whole = max(runner.resident_bytes, runner.shared_bytes + grown)
        held = grown if load.cold else whole
        takes_requests = runner if isinstance(runner, PythonRunner) else None
        resident = cls(model, runner, signature, held, answered, takes_requests)
        limit = model.terms.memory_limit_bytes
        if limit is not None and resident.resident_bytes > limit:
            resident.close()
            raise MemoryLimitError(
                f"it needs {resident.resident_bytes} bytes, its memory limit is {limit} bytes; "
                f"raise the limit or use a smaller model"
            )
        return resident

    def runs(self) -> bool:
        """Whether it runs at all: as it has, or else on its sample values."""
        if self.answered is None:
            self.answered = _runs(self.model, self.runner, self.signature, 1, 1)
        return self.answered

    def close(self) -> None:
        """Let go of the model and give its memory back to the system."""
        self.runner.close()
        release_free_memory()


def _runs(model: Model, runner: ModelRunner, signature: Signature, rows: int, times: int) -> bool:
    """Run it on the sample values; those may be nonsense to it, requests will show."""
    inputs = sample_inputs(model, signature, rows)
    with contextlib.suppress(Exception):
        for _ in range(times):
            runner.run(inputs)
        return True
    return False
