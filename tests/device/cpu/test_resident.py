"""A model in a worker: whether it runs at all, asked of its sample values once."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from interlace.core.model import Format
from interlace.core.tensor import Signature, TensorSpec
from interlace.device.cpu.resident import ResidentModel
from tests.formats.making import a_model

SPEC = TensorSpec("x", "FP32", (2,))


class Runner:
    def __init__(self, broken: bool) -> None:
        self.broken, self.ran = broken, 0

    def run(self, inputs: Mapping[str, Any]) -> dict[str, Any]:
        self.ran += 1
        if self.broken:
            raise RuntimeError("it never runs")
        return dict(inputs)


@pytest.mark.parametrize("broken", [True, False])
def test_a_model_that_no_request_ran_is_tried_once(broken: bool) -> None:
    """So that a bad first request is its client's fault where the model is well."""
    signature = Signature((SPEC,), (SPEC,), True, 4)
    model, runner = a_model(Format.ONNX, Path("none"), signature), Runner(broken)
    resident = ResidentModel(model, runner, signature, 0)  # type: ignore[arg-type]
    assert [resident.runs(), resident.runs()] == [not broken] * 2
    assert runner.ran == 1
    resident.answered = True  # by a client's request
    assert resident.runs()
