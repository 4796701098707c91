"""A torch model behind the contract of a runner, whatever file it came from."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import torch

from interlace.core.model import Model
from interlace.formats.arrays import client_outputs, model_inputs
from interlace.formats.cold_weights import ColdWeights
from interlace.formats.opened import ModelCall, OpenedModel, TrialResult, try_out
from interlace.formats.runner import Array
from interlace.formats.torch_sharing import (
    SharedWeights,
    share_weights,
    shared_architecture,
    weights_of_another,
)
from interlace.formats.torch_values import (
    accept_read_only_arrays,
    named_values,
    pick,
    sample_values,
    to_numpy,
    to_torch,
)


@dataclass(frozen=True, slots=True)
class _OpenModule:
    """What models of one architecture have in common: a call, what a trial of it showed."""

    call: ModelCall
    trial: TrialResult
    architecture: str


class TorchRunner:
    """Runs a ``ModelCall`` on numpy arrays without copying them."""

    def __init__(self, module: _OpenModule, model: Model, weights: SharedWeights) -> None:
        accept_read_only_arrays()
        self._module: _OpenModule | None = module
        self._weights = weights
        self.signature = module.trial.signature
        stated = model.signature.inputs and model.signature.outputs
        self._served = model.signature if stated else self.signature
        self._copies = module.trial.writes_inputs
        self._datatypes = {spec.name: spec.datatype for spec in self._served.inputs}

    @property
    def architecture(self) -> str:
        """What models have in common that can take turns with its module; empty if none can."""
        return "" if self._module is None else self._module.architecture

    def of_another(self, model: Model, weights_dir: str) -> TorchRunner:
        """A model of the same architecture, which takes turns with this one; it need not be open.

        Raises:
            ValueError: this one is closed, or of no architecture.
        """
        if not self.architecture or self._module is None or self._weights.cold is None:
            raise ValueError(f"{model.name} cannot take turns with this model")
        weights = weights_of_another(model, weights_dir, self._weights.cold)
        return TorchRunner(self._module, model, weights)

    @property
    def resident_bytes(self) -> int:
        return self._weights.total_bytes

    @property
    def shared_bytes(self) -> int:
        return self._weights.shared_bytes

    @property
    def warnings(self) -> tuple[str, ...]:
        return self._weights.warnings

    @property
    def cold(self) -> ColdWeights | None:
        return self._weights.cold

    def run(self, inputs: Mapping[str, Array]) -> dict[str, Array]:
        assert self._module is not None, "run after close"
        cold = self._weights.cold
        with torch.inference_mode(), nullcontext() if cold is None else cold.arrivals():
            values = {
                name: to_torch(array.copy() if self._copies else array, self._datatypes[name])
                for name, array in model_inputs(inputs, self._served).items()
            }
            result = pick(named_values(self._module.call(values)), self._served.outputs)
            outputs = {name: to_numpy(value) for name, value in result.items()}
        rows = next(iter(inputs.values())).shape[0] if self._served.batched else 1
        return client_outputs(outputs, self._served, rows)

    def close(self) -> None:
        self._module = None
        if self._weights.cold is not None:
            self._weights.cold.close()


def open_on_cpu(
    open_call: Callable[[Model], OpenedModel], model: Model, threads: int, weights_dir: str | None
) -> TorchRunner:
    """Open a model and run it on this process's cores, its weights shared by ``weights_dir``.

    Raises:
        RepositoryError: as ``open_call``; nothing describes the inputs, or the outputs cannot be
            learnt.
    """
    torch.set_num_threads(threads)
    opened = open_call(model)
    # Before the first execution, which may keep constants of its own.
    weights = share_weights(
        opened.tensors,
        model,
        weights_dir,
        lambda: opened.call(sample_of(opened, model)),
        opened.architecture,
    )
    trial = try_out(opened.call, model, opened.spoken)
    told = weights.cold is not None and weights.cold.file.layout.architecture
    shared = shared_architecture(model, weights_dir) if told else ""
    return TorchRunner(_OpenModule(opened.call, trial, shared), model, weights)


def sample_of(opened: OpenedModel, model: Model) -> dict[str, Any]:
    """The values that a model is first tried out on."""
    inputs, batched = opened.spoken.inputs_of(model)
    return sample_values(inputs, model, batched, 0)
